package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Foreign is a key that was made elsewhere.
type Foreign struct {
	Line    int    // where it stands in its file: faults name it
	Secret  string // any text a header field can carry
	Tenant  string
	ID      string // "": one is made
	Created string // a moment as expires_at takes it; "": now
	Policy  Changes
}

// Imported is what became of a Foreign.
type Imported struct {
	Entry
	There bool // it was there before: nothing but its alias was written
}

// idForm is what admissions take for a key's id.
var idForm = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// Import makes a record for each key and a line that says which tenant it belongs to, so that a key of any shape is
// accepted as it stands. Nothing is written when any of them is at fault: the error names all faults by their line
// and quotes no secret. An import that was interrupted may be repeated.
func (d *Directory) Import(ctx context.Context, keys []Foreign) ([]Imported, error) {
	now, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	ready := make([]newKey, len(keys))
	var faults []error
	first := map[string]int{} // line by hash, and by tenant and id
	for i, k := range keys {
		var err error
		if ready[i], err = k.prepare(now); err != nil {
			faults = append(faults, fmt.Errorf("line %d: %w", k.Line, err))
			continue
		}
		for _, name := range []string{ready[i].hash, k.Tenant + "/" + k.ID} {
			if before := first[name]; before > 0 && !strings.HasSuffix(name, "/") {
				faults = append(faults, fmt.Errorf("line %d: the same key or id as in line %d", k.Line, before))
				break
			}
			first[name] = k.Line
		}
		if err := d.vacant(ctx, k, ready[i].hash); errors.Is(err, ErrInvalid) {
			faults = append(faults, fmt.Errorf("line %d: %w", k.Line, err))
		} else if err != nil {
			return nil, err
		}
	}
	if err := joinFaults(faults); err != nil {
		return nil, err
	}
	done := make([]Imported, 0, len(keys))
	for _, k := range ready {
		one, err := d.adopt(ctx, k, now)
		if err != nil {
			return done, err
		}
		done = append(done, one)
	}
	return done, nil
}

// prepare judges one key without Redis.
func (k Foreign) prepare(now time.Time) (newKey, error) {
	r := Ref{Kind: KindKey, Tenant: k.Tenant, ID: k.ID}
	if r.ID == "" {
		r.ID = "key_" + newULID(now)
	}
	if err := checkRef(r); err != nil {
		return newKey{}, err
	}
	if !idForm.MatchString(r.ID) {
		return newKey{}, invalidf("id %q: want 1 to 64 of A-Z, a-z, 0-9 and . _ @ -", r.ID)
	}
	if k.Secret == "" || len(k.Secret) > 1024 || strings.TrimSpace(k.Secret) != k.Secret ||
		strings.ContainsFunc(k.Secret, func(c rune) bool { return c < ' ' || c >= 0x7f }) {
		return newKey{}, invalidf("key: want 1 to 1024 printable ASCII characters without spaces at the ends")
	}
	made := now
	if k.Created != "" {
		var err error
		if made, err = parseMoment(k.Created); err != nil || made.After(now) {
			return newKey{}, invalidf("created_at %q: want a time that has passed, as in 2026-01-31T00:00:00Z", k.Created)
		}
	}
	policy := maps.Clone(k.Policy)
	write, err := policy.first(KindKey, now)
	if err != nil {
		return newKey{}, err
	}
	write = append([][2]string{{"id", r.ID}}, append(write, [2]string{"created_at", strconv.FormatInt(made.UnixMilli(), 10)})...)
	return newKey{r, HashKey(k.Secret), write, policy}, nil
}

// vacant is nil where the key and its id are nobody else's.
func (d *Directory) vacant(ctx context.Context, k Foreign, hash string) error {
	m, err := d.store.Do(ctx, "GET", Alias(hash))
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	if owner, _ := m.ToString(); owner != "" && owner != k.Tenant {
		return invalidf("the key belongs to tenant %q already", owner)
	}
	if k.ID == "" {
		return nil
	}
	if m, err = d.store.Do(ctx, "HGET", KeyIndex(k.Tenant), k.ID); err != nil {
		return fmt.Errorf("import: %w", err)
	}
	if other, _ := m.ToString(); other != "" && other != hash {
		return invalidf("id %q is another key's", k.ID)
	}
	return nil
}

// adopt writes one key: its record first, so that an alias never leads to nothing.
func (d *Directory) adopt(ctx context.Context, k newKey, now time.Time) (Imported, error) {
	entry, err := d.writeKey(ctx, k, now)
	there := errors.Is(err, ErrExists)
	if there {
		var entries []Entry
		entries, err = d.read(ctx, k.Tenant, []Ref{k.Ref}, []string{KeyRecord(k.Tenant, k.hash)})
		if err == nil && len(entries) == 1 {
			entry = entries[0].underItsID()
		}
	}
	if err == nil {
		_, err = d.store.Do(ctx, "SET", Alias(k.hash), k.Tenant)
	}
	return Imported{entry, there}, err
}
