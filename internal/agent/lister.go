package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"gputune/internal/follow"
)

// RoleFollow is a child that says which processes use GPUs, for as long as there is
// somebody to read it. It writes a Seen for each order, each change, and as a
// sign of life each heartbeat.
const RoleFollow = "follow"

// FollowOrder is what such a child is told after its Work, any number of times.
type FollowOrder struct {
	GPUs []string `json:"gpus"` // PCI addresses; none: let go of the driver until there are some
}

// Seen is one line of its answer.
type Seen struct {
	Lists []follow.List `json:"lists"`
	CPU   float64       `json:"cpu"` // processor time that the child has taken so far, in seconds
}

// heartbeat is how often it writes at least; one that is silent for silence hangs.
const (
	heartbeat = 10 * time.Second
	silence   = time.Minute
)

// maxShare is the part of a core that asking may take: what takes longer is asked
// less often.
const maxShare = 0.01

// serveFollow is the child. orders has what comes after the work; its end, the
// agent's, is the child's.
func serveFollow(ctx context.Context, work Work, lister follow.Lister, orders *json.Decoder, out io.Writer) error {
	if work.Interval <= 0 {
		return fmt.Errorf("role %q: interval %v: want more than 0", RoleFollow, work.Interval)
	}
	incoming, ended := make(chan FollowOrder), make(chan error, 1)
	go func() {
		for {
			var order FollowOrder
			if err := orders.Decode(&order); err != nil {
				ended <- err
				return
			}
			select {
			case incoming <- order:
			case <-ctx.Done():
				return
			}
		}
	}()
	write := bufio.NewWriter(out)
	encoder := json.NewEncoder(write)
	gpus := work.GPUs
	var last []follow.List
	var said time.Time
	for {
		before := used()
		lists := lister.List(gpus)
		cost := used() - before
		if time.Since(said) >= heartbeat || !reflect.DeepEqual(lists, last) {
			if err := errors.Join(encoder.Encode(Seen{lists, used().Seconds()}), write.Flush()); err != nil {
				return errors.Join(err, lister.Close())
			}
			last, said = lists, time.Now()
		}
		timer := time.NewTimer(max(work.Interval, min(time.Duration(float64(cost)/maxShare), heartbeat)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return lister.Close()
		case err := <-ended:
			timer.Stop()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, lister.Close())
		case order := <-incoming:
			gpus, said = order.GPUs, time.Time{}
			if len(gpus) == 0 {
				if err := lister.Close(); err != nil {
					return err
				}
			}
		case <-timer.C:
		}
		timer.Stop()
	}
}
