package ledger

import (
	"errors"
	"fmt"
	"time"
)

// JobRecord is what the ledger knows about one job without asking the machine.
type JobRecord struct {
	Job     string
	Written time.Time // when the record was written last, zero if it cannot be read
	Keys    []string  // in the order in which they were set
	// Earlier says that the record is from before the last boot: its job has
	// ended, whatever there is now.
	Earlier bool
	// Bad is why the record cannot be read; ReleaseAll sets it aside.
	Bad error
}

// Jobs returns who has a record, by job. It reads no setting, waits for no lock
// and changes nothing.
func (l *Ledger) Jobs() ([]JobRecord, error) {
	jobs, err := l.store.jobs()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	var list []JobRecord
	for _, job := range jobs {
		r, err := l.store.load(job)
		bad := (*badRecord)(nil)
		switch {
		case errors.As(err, &bad):
			list = append(list, JobRecord{Job: job, Bad: bad})
		case err != nil:
			return nil, fmt.Errorf("ledger: %w", err)
		case r != nil:
			list = append(list, JobRecord{Job: job, Written: r.Written, Keys: r.keys(), Earlier: r.Boot != l.boot})
		}
	}
	return list, nil
}
