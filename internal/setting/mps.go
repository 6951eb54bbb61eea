package setting

import (
	"context"
	"errors"
	"fmt"

	"gputune/internal/mps"
)

// MPSName is the last part of the key.
const MPSName = "mps"

// MPSOff is the value of a GPU that no daemon of gputune's serves first, which
// is what is taken to be there before a job.
const MPSOff = "off"

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "gpu/*/" + MPSName,
			Doc:     "the MPS control daemon that serves the GPU as its first: off, or a spec of package mps: job=7,uid=1000,gid=1000,gpus=GPU-…",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return mpsDaemon{g, env.MPS}, err
		},
	})
}

// mpsDaemon is the MPS control daemon of a job. The key names the first of the
// job's GPUs, so that jobs on different GPUs do not wait for each other; the
// value says all of the daemon.
//
// A job that wants one gives the ledger "off" as the value before, so that what
// an earlier job left is not put back.
type mpsDaemon struct {
	gpu
	host mps.Host
}

// Traits implements Setting. Starting and stopping take several steps.
func (mpsDaemon) Traits() Traits {
	return Traits{Needs: WholeGPU, Lifetime: UntilReboot, Loose: true}
}

// Check implements Setting. It takes "off" and what mps.Spec writes; the first
// GPU of that is the key's.
func (s mpsDaemon) Check(_ context.Context, value string) (string, error) {
	if value == MPSOff {
		return value, nil
	}
	spec, err := s.spec(value)
	if err != nil {
		return "", err
	}
	if _, err := s.host.FindProgram(spec.Program); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return spec.String(), nil
}

func (s mpsDaemon) spec(value string) (mps.Spec, error) {
	spec, err := mps.ParseSpec(value)
	if err != nil {
		return mps.Spec{}, err
	}
	if spec.GPUs[0] != s.uuid {
		return mps.Spec{}, fmt.Errorf("%s: value %s: its first GPU is not the key's", s.key, shown(value))
	}
	return spec, nil
}

// Read implements Setting. A daemon that has ended by itself or was killed is
// still the value: its folders are there, its user can kill it, and that must
// not look as if somebody had taken over the setting.
func (s mpsDaemon) Read(context.Context) (string, error) {
	value, err := s.host.Value(s.uuid)
	switch {
	case err != nil:
		return "", err
	case value == "":
		return MPSOff, nil
	}
	return value, nil
}

// Write implements Setting. A daemon is started only if what is there does not
// answer; success means that it has.
func (s mpsDaemon) Write(ctx context.Context, value string) error {
	if value == MPSOff {
		if err := s.host.Stop(ctx, s.uuid); err != nil {
			return err
		}
		return readBack(ctx, s, s.key, value)
	}
	spec, err := s.spec(value)
	if err != nil {
		return err
	}
	if err := s.host.Start(ctx, spec); err != nil {
		if errors.Is(err, mps.ErrNoProgram) {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		return err
	}
	return readBack(ctx, s, s.key, value)
}
