package option

import "fmt"

// DropCachesName is the name of the option that Caches is the value of.
const DropCachesName = "drop-caches"

// DropCachesForms lists the accepted values, for messages.
const DropCachesForms = "page, slab or all"

// Caches are what the kernel keeps in memory of files.
type Caches string

// The values of --drop-caches.
const (
	CachesPage Caches = "page" // what is in files
	CachesSlab Caches = "slab" // names and inodes
	CachesAll  Caches = "all"
)

// ParseDropCaches reads the value of --drop-caches. The empty value, and "(null)"
// as Slurm writes an absent argument, mean that it was given bare, which is page.
func ParseDropCaches(value string) (Caches, error) {
	switch caches := Caches(value); caches {
	case "", "(null)":
		return CachesPage, nil
	case CachesPage, CachesSlab, CachesAll:
		return caches, nil
	}
	return "", fmt.Errorf("--%s: %s: want %s", DropCachesName, Shown(value), DropCachesForms)
}
