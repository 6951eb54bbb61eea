package job

import (
	"context"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/option"
)

// dropCaches is --drop-caches.
type dropCaches struct {
	want option.Caches
	site conf.DropCaches
}

func newDropCaches(value string, site conf.Config) (wish, error) {
	want, err := option.ParseDropCaches(value)
	return dropCaches{want, site.DropCaches}, err
}

func (w dropCaches) access() conf.Access { return w.site.Access }

// changes implements wish: there is nothing to put back.
func (w dropCaches) changes(ctx context.Context, s *scene) ([]ledger.Change, error) {
	_, err := s.single(ctx, conf.NodeOptions{DropCaches: w.want})
	return nil, err
}

// drops implements dropping.
func (w dropCaches) drops() option.Caches { return w.want }
