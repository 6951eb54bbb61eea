package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"gputune/internal/setting"
)

// version is that of the records this program writes.
const version = 1

// state is how far the change of one key has come.
type state string

const (
	intent    state = "intent"    // may or may not have been made
	applied   state = "applied"   // was made
	restoring state = "restoring" // may or may not have been put back
)

// entry is one key that a job holds.
type entry struct {
	Key   string `json:"key"`
	Prior string `json:"prior"` // value before the first of all holders
	Set   string `json:"set"`   // value that was set, as it reads
	// Asked is the value that was asked for where a loose setting made
	// another one of it.
	Asked string `json:"asked,omitempty"`
	// Found is what was there, where Prior is a site's value in its place.
	Found string `json:"found,omitempty"`
	// Left is what a failed attempt to put the key back left there.
	Left  string `json:"left,omitempty"`
	State state  `json:"state"`
	// Epoch counts how often somebody took over while the key was held.
	Epoch int `json:"epoch,omitempty"`

	Lifetime  setting.Lifetime `json:"lifetime"`
	WriteOnly bool             `json:"write_only,omitempty"`
	Loose     bool             `json:"loose,omitempty"`
}

// wanted is the value that the holder asked for.
func (e entry) wanted() string {
	if e.Asked != "" {
		return e.Asked
	}
	return e.Set
}

// ours tells whether a value that the key has can be gputune's doing. Of a
// setting that knows its unfinished work, that counts whenever it is found: a
// reset or a reboot can undo a part of what was finished.
func (e entry) ours(s setting.Setting, current string) bool {
	if current == e.Set || e.Found != "" && current == e.Found || e.Left != "" && current == e.Left {
		return true
	}
	if stepwise, is := s.(setting.Stepwise); is {
		return stepwise.Between(e.Prior, e.Set, current)
	}
	return e.Loose && e.State != applied
}

// record is what one job holds, in the order in which it was set.
type record struct {
	Job     string    `json:"job"`
	Boot    string    `json:"boot"`
	Written time.Time `json:"written"`
	Entries []entry   `json:"entries"`
}

// keys returns the record's keys; a nil record has none.
func (r *record) keys() []string {
	if r == nil {
		return nil
	}
	keys := make([]string, len(r.Entries))
	for i, e := range r.Entries {
		keys[i] = e.Key
	}
	return keys
}

// find returns the place of a key, −1 if the record, or nil, has none.
func (r *record) find(key string) int {
	return slices.Index(r.keys(), key)
}

// forgot tells whether the machine has forgotten an entry since it booted.
func (r *record) forgot(e entry, boot string) bool {
	return r.Boot != boot && e.Lifetime != setting.Kept
}

// envelope is what is in the file.
type envelope struct {
	Version  int             `json:"gputune-ledger"`
	Checksum string          `json:"crc32c"`
	Record   json.RawMessage `json:"record"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

func encode(r *record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	// The envelope is put together by hand since the checksum is over these
	// very bytes.
	return fmt.Appendf(nil, "{\"gputune-ledger\":%d,\"crc32c\":%q,\"record\":%s}\n", version, checksum(body), body), nil
}

// decode reads a record. Whatever encode did not write is an error.
func decode(text []byte, job string) (*record, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("empty")
	}
	var outer envelope
	if err := json.Unmarshal(text, &outer); err != nil {
		return nil, fmt.Errorf("torn or foreign: %w", err)
	}
	switch {
	case outer.Version == 0:
		return nil, errors.New("foreign: no version")
	case outer.Version != version:
		return nil, fmt.Errorf("version %d, this program has %d", outer.Version, version)
	case outer.Checksum != checksum(outer.Record):
		return nil, errors.New("torn: wrong checksum")
	}
	var r record
	if err := json.Unmarshal(outer.Record, &r); err != nil {
		return nil, fmt.Errorf("foreign: %w", err)
	}
	if r.Job != job {
		return nil, fmt.Errorf("of job %q", r.Job)
	}
	if r.Boot == "" {
		return nil, errors.New("no boot id")
	}
	seen := map[string]bool{}
	for _, e := range r.Entries {
		if err := e.check(); err != nil {
			return nil, err
		}
		if seen[e.Key] {
			return nil, fmt.Errorf("%s twice", e.Key)
		}
		seen[e.Key] = true
	}
	return &r, nil
}

func (e entry) check() error {
	if err := setting.CheckKey(e.Key); err != nil {
		return err
	}
	if !slices.Contains([]state{intent, applied, restoring}, e.State) {
		return fmt.Errorf("%s: state %q", e.Key, e.State)
	}
	if !slices.Contains([]setting.Lifetime{setting.UntilReboot, setting.Kept, setting.WhileThere}, e.Lifetime) {
		return fmt.Errorf("%s: lifetime %q", e.Key, e.Lifetime)
	}
	if e.Epoch < 0 {
		return fmt.Errorf("%s: epoch %d", e.Key, e.Epoch)
	}
	return nil
}

// checkJob keeps ids of jobs fit to be names of files.
func checkJob(job string) error {
	const most = 64
	ok := job != "" && len(job) <= most && job[0] != '.' && strings.IndexFunc(job, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}) < 0
	if !ok {
		return fmt.Errorf("job id %.80q: 1 to %d letters, digits and any of . _ - are needed, the first of them no dot", job, most)
	}
	return nil
}

// domains returns the parts of the machine that keys belong to, each once, in
// the order in which they are locked.
func domains(keys []string) []string {
	var list []string
	for _, key := range keys {
		list = append(list, setting.Domain(key))
	}
	slices.Sort(list)
	return slices.Compact(list)
}
