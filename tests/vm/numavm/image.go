package numavm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	recipeDir = "tests/vm/image"
	// imagesKept is how many images of one suite stay in the cache: that of this recipe and the one before, so that
	// changing between two states of the tree does not build each time.
	imagesKept = 2
	useLock    = "use.lock"
	// buildPidFile is in a folder while it is built.
	buildPidFile = "build" + pidSuffix
)

// Image is a built image, which stays in the cache at least until Close.
type Image struct {
	// Dir has root.img, vmlinuz, info (what is inside) and build.log.
	Dir string
	// Built is how long it took to build; 0 if it was in the cache.
	Built time.Duration

	use *os.File
}

// Disk is the file with the disk, raw.
func (i *Image) Disk() string { return filepath.Join(i.Dir, "root.img") }

// Kernel is the file with the kernel.
func (i *Image) Kernel() string { return filepath.Join(i.Dir, "vmlinuz") }

// Close lets go of the image.
func (i *Image) Close() error {
	return i.use.Close()
}

// EnsureImage returns the image of a suite from the cache, and builds it (about half a minute) when the recipe below tree has
// changed or there is none. Any number of processes may call it at the same time: one builds, the others wait. A build that
// fails leaves nothing behind.
func EnsureImage(ctx context.Context, tree, cache string, suite Suite, log *slog.Logger) (*Image, error) {
	recipe := filepath.Join(tree, recipeDir)
	files, err := imageFiles(recipe)
	if err != nil {
		return nil, err
	}
	key, err := recipeKey(files, string(suite))
	if err != nil {
		return nil, err
	}
	parent := filepath.Join(cache, "images")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	turn, err := lock(ctx, filepath.Join(parent, string(suite)+".lock"))
	if err != nil {
		return nil, err
	}
	defer turn.Close()

	img := &Image{Dir: filepath.Join(parent, string(suite)+"-"+key)}
	if _, err := os.Stat(img.Dir); errors.Is(err, os.ErrNotExist) {
		log.Info("building an image", "suite", suite, "folder", img.Dir)
		start := time.Now()
		err = buildFolder(ctx, img.Dir, filepath.Join(recipe, "build.sh"), string(suite))
		if err != nil {
			return nil, fmt.Errorf("image of %s: %w", suite, err)
		}
		img.Built = time.Since(start)
		log.Info("image built", "suite", suite, "took", img.Built.Round(100*time.Millisecond))
	} else if err != nil {
		return nil, err
	}
	if img.use, err = tryLock(filepath.Join(img.Dir, useLock), syscall.LOCK_SH); err != nil {
		return nil, err
	}
	now := time.Now()
	if err := os.Chtimes(img.Dir, now, now); err != nil { // pruneImages goes by it
		return nil, errors.Join(err, img.Close())
	}
	if err := pruneImages(parent, suite, imagesKept); err != nil {
		return nil, errors.Join(err, img.Close())
	}
	return img, nil
}

// recipeKey is a hash over files, with their names and whether they are executable, and what else the result depends on.
func recipeKey(files []string, more ...string) (string, error) {
	h := sha256.New()
	for _, m := range more {
		fmt.Fprintf(h, "%d %s\n", len(m), m)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("recipe: %w", err)
		}
		st, err := os.Stat(f)
		if err != nil {
			return "", fmt.Errorf("recipe: %w", err)
		}
		fmt.Fprintf(h, "%s %t %d\n", filepath.Base(f), st.Mode()&0o100 != 0, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// imageFiles are the files that an image depends on: all of the recipe's folder but the script that gets a QEMU.
func imageFiles(recipe string) ([]string, error) {
	entries, err := os.ReadDir(recipe)
	if err != nil {
		return nil, fmt.Errorf("recipe: %w", err)
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != qemuScript {
			files = append(files, filepath.Join(recipe, e.Name()))
		}
	}
	return files, nil
}

// buildFolder runs script with args and an empty folder as its last argument. On success that folder becomes dir, all at
// once; after a failure there is none. The caller holds a lock on dir's name.
//
// The script runs in a mount and a pid namespace of its own: when it ends or is killed, so is all that it started, and
// nothing stays mounted.
func buildFolder(ctx context.Context, dir, script string, args ...string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root", script)
	}
	left, err := filepath.Glob(dir + ".building-*")
	if err != nil {
		return fmt.Errorf("folders of earlier builds: %w", err)
	}
	for _, l := range left {
		if err := killLeftover(filepath.Join(l, buildPidFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(l); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".building-")
	if err != nil {
		return err
	}
	if err := runBuild(ctx, tmp, script, args); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return nil
}

// pruneImages removes a suite's images that are not in use, but for the keep most recently used ones. The caller holds the
// suite's lock.
func pruneImages(parent string, suite Suite, keep int) error {
	dirs, err := filepath.Glob(filepath.Join(parent, string(suite)+"-*"))
	if err != nil {
		return fmt.Errorf("images of %s: %w", suite, err)
	}
	type image struct {
		dir  string
		used time.Time
	}
	var images []image
	for _, d := range dirs {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if strings.Contains(filepath.Base(d), ".building-") {
			continue
		}
		images = append(images, image{d, st.ModTime()})
	}
	for len(images) > keep {
		oldest := 0
		for i := range images {
			if images[i].used.Before(images[oldest].used) {
				oldest = i
			}
		}
		dir := images[oldest].dir
		images = append(images[:oldest], images[oldest+1:]...)
		inUse, err := tryLock(filepath.Join(dir, useLock), syscall.LOCK_EX)
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return err
		}
		err = os.RemoveAll(dir)
		_ = inUse.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// CleanImages removes all images from the cache that are not in use.
func CleanImages(ctx context.Context, cache string) error {
	parent := filepath.Join(cache, "images")
	for _, s := range Suites() {
		if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		turn, err := lock(ctx, filepath.Join(parent, string(s)+".lock"))
		if err != nil {
			return err
		}
		err = pruneImages(parent, s, 0)
		_ = turn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
