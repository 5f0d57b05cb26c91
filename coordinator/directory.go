package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
)

// What went wrong, for callers that answer each kind differently; the text around it names the subject.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrInvalid  = errors.New("invalid")
	ErrInUse    = errors.New("in use")
)

// invalid is a fault in what a person gave, in words that need no prefix; it is an ErrInvalid.
type invalid string

func (e invalid) Error() string        { return string(e) }
func (e invalid) Is(target error) bool { return target == ErrInvalid }

func invalidf(format string, args ...any) error { return invalid(fmt.Sprintf(format, args...)) }

// Directory makes, lists, changes and removes tenants, teams, users and keys. Their records are plain hashes that may
// just as well be written with redis-cli: what is there is what the next admission obeys.
//
//	D1. A record is written by one script: it is never half there, and a change never brings back one that is gone.
//	D2. A key is stored nowhere; its record is named by its SHA-256 and the key is returned once.
//	D3. No record loses a limit because another was removed: what keys still refer to is not removed without them.
//	D4. A record made by hand is found by its id, and then listed.
//	D5. What does not pass the checks is not written; what is stored and does not pass them is shown with the fault.
type Directory struct {
	store *pipeline.Store
}

// NewDirectory is the directory kept in store.
func NewDirectory(store *pipeline.Store) *Directory { return &Directory{store: store} }

// Kind is the kind of a record.
type Kind string

// Kinds of records.
const (
	KindTenant Kind = "tenant"
	KindTeam   Kind = "team"
	KindUser   Kind = "user"
	KindKey    Kind = "key"
)

// Ref names one record. ID is empty for a tenant; for a key it is its id (key_…) or its name, if only one key of the
// tenant has it.
type Ref struct {
	Kind       Kind
	Tenant, ID string
}

func (r Ref) String() string {
	if r.Kind == KindTenant {
		return "tenant " + strconv.Quote(r.Tenant)
	}
	return fmt.Sprintf("%s %q of tenant %q", r.Kind, r.ID, r.Tenant)
}

// Create makes the tenant, team or user r with changes as its first fields; a missing tenant is made too. Keys are
// made by CreateKey.
func (d *Directory) Create(ctx context.Context, r Ref, changes Changes) (Entry, error) {
	if err := checkRef(r); err != nil {
		return Entry{}, err
	}
	now, err := d.now(ctx)
	if err != nil {
		return Entry{}, err
	}
	write, err := changes.first(r.Kind, now)
	if err != nil {
		return Entry{}, err
	}
	made, err := d.makeTenant(ctx, r, now)
	if err != nil {
		return Entry{}, err
	}
	edit := editOf(r, "", lua.EditCreate)
	edit.Write = append(named(r, write), stamp(now))
	done, err := d.edit(ctx, r.Tenant, edit)
	if err == nil && !done[0] {
		err = fmt.Errorf("%s %w", r, ErrExists)
	}
	if err != nil {
		return Entry{}, err
	}
	entry, err := d.Show(ctx, r)
	entry.Made = made
	return entry, err
}

// Show reads one record, however it was made.
func (d *Directory) Show(ctx context.Context, r Ref) (Entry, error) {
	if r.Kind == KindKey {
		return d.findKey(ctx, r)
	}
	if err := checkRef(r); err != nil {
		return Entry{}, err
	}
	entries, err := d.read(ctx, r.Tenant, []Ref{r}, []string{recordName(r, "")})
	if err != nil {
		return Entry{}, err
	}
	if len(entries) == 0 {
		return Entry{}, fmt.Errorf("%s %w", r, ErrNotFound)
	}
	return entries[0], d.file(ctx, r, "")
}

// List returns the records of a kind in order of their ids: all tenants, or all teams, users or keys of one tenant.
// Records made by hand are in it once they were shown, or after Reindex.
func (d *Directory) List(ctx context.Context, kind Kind, tenant string) ([]Entry, error) {
	if kind == KindKey {
		return d.listKeys(ctx, tenant)
	}
	index := map[Kind]string{KindTenant: TenantIndex(), KindTeam: TeamIndex(tenant), KindUser: UserIndex(tenant)}[kind]
	m, err := d.store.Do(ctx, "SMEMBERS", index)
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", kind, err)
	}
	ids, err := m.AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", kind, err)
	}
	slices.Sort(ids)
	refs, names := make([]Ref, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		refs[i] = Ref{Kind: kind, Tenant: tenant, ID: id}
		if kind == KindTenant {
			refs[i] = Ref{Kind: kind, Tenant: id}
		}
		names[i] = recordName(refs[i], "")
	}
	return d.read(ctx, tenant, refs, names)
}

// Set changes fields of one record; an empty value removes the field. The next admission obeys it. What is set on a key
// that was rotated is set on the one before it too, but for its end.
func (d *Directory) Set(ctx context.Context, r Ref, changes Changes) (Entry, error) {
	if len(changes) == 0 {
		return Entry{}, invalidf("nothing to change (known fields: %s)", strings.Join(FieldNames(r.Kind), ", "))
	}
	entry, err := d.Show(ctx, r)
	if err != nil {
		return Entry{}, err
	}
	now, err := d.now(ctx)
	if err != nil {
		return Entry{}, err
	}
	edit := editOf(entry.Ref, entry.hash, lua.EditChange)
	if edit.Write, edit.Remove, err = changes.apply(r.Kind, entry.Fields, now); err != nil {
		return Entry{}, err
	}
	made, err := d.makeOwners(ctx, entry.Tenant, changes, now)
	if err != nil {
		return Entry{}, err
	}
	edits, err := d.alsoBefore(ctx, entry, edit)
	if err != nil {
		return Entry{}, err
	}
	done, err := d.edit(ctx, entry.Tenant, edits...)
	if err == nil && !done[0] {
		err = fmt.Errorf("%s %w", r, ErrNotFound)
	}
	if err != nil {
		return Entry{}, err
	}
	entry, err = d.Show(ctx, entry.Ref)
	entry.Made = made
	return entry, err
}

// Delete removes one record: a key is refused from the next request on. A tenant, team or user that keys still refer
// to is removed only withKeys, after these; a tenant goes with its teams and users. Counters of money and usage records
// stay until they end by themselves, so making a name again does not refill its budget.
func (d *Directory) Delete(ctx context.Context, r Ref, withKeys bool) error {
	entry, err := d.Show(ctx, r)
	if err != nil {
		return err
	}
	if r.Kind != KindKey {
		if err := d.deleteKeysOf(ctx, entry.Ref, withKeys); err != nil {
			return err
		}
	}
	if r.Kind == KindTenant {
		for _, kind := range []Kind{KindTeam, KindUser} {
			if err := d.deleteAll(ctx, kind, r.Tenant); err != nil {
				return err
			}
		}
	}
	if r.Kind == KindKey {
		return d.deleteKey(ctx, entry)
	}
	if _, err := d.edit(ctx, r.Tenant, editOf(entry.Ref, entry.hash, lua.EditRemove)); err != nil {
		return err
	}
	if r.Kind == KindTenant {
		_, err = d.store.Do(ctx, "SREM", TenantIndex(), r.Tenant)
	}
	return err
}

func (d *Directory) deleteAll(ctx context.Context, kind Kind, tenant string) error {
	entries, err := d.List(ctx, kind, tenant)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := d.edit(ctx, tenant, editOf(e.Ref, "", lua.EditRemove)); err != nil {
			return err
		}
	}
	return nil
}

// makeTenant makes r's tenant if it is missing and lists it; it returns what it made.
func (d *Directory) makeTenant(ctx context.Context, r Ref, now time.Time) (made []Ref, err error) {
	if r.Kind != KindTenant {
		t := Ref{Kind: KindTenant, Tenant: r.Tenant}
		edit := editOf(t, "", lua.EditEnsure)
		edit.Write = [][2]string{stamp(now)}
		done, err := d.edit(ctx, r.Tenant, edit)
		if err != nil {
			return nil, err
		}
		if done[0] {
			made = []Ref{t}
		}
	}
	_, err = d.store.Do(ctx, "SADD", TenantIndex(), r.Tenant)
	return made, err
}

// makeOwners makes the team and the user that a key's changes name, if they are missing; it returns what it made.
func (d *Directory) makeOwners(ctx context.Context, tenant string, changes Changes, now time.Time) (made []Ref, err error) {
	var edits []lua.EditArgs
	var refs []Ref
	for _, kind := range []Kind{KindTeam, KindUser} {
		if id := strings.TrimSpace(changes[string(kind)]); id != "" {
			r := Ref{Kind: kind, Tenant: tenant, ID: id}
			edit := editOf(r, "", lua.EditEnsure)
			edit.Write = named(r, [][2]string{stamp(now)})
			edits, refs = append(edits, edit), append(refs, r)
		}
	}
	done, err := d.edit(ctx, tenant, edits...)
	for i, did := range done {
		if did {
			made = append(made, refs[i])
		}
	}
	return made, err
}

// file puts a record that was made by hand into its index.
func (d *Directory) file(ctx context.Context, r Ref, hash string) error {
	if r.Kind == KindTenant {
		_, err := d.store.Do(ctx, "SADD", TenantIndex(), r.Tenant)
		return err
	}
	_, err := d.edit(ctx, r.Tenant, editOf(r, hash, lua.EditFile))
	return err
}

// edit applies edits below one tenant in one round trip and says which of them did something.
func (d *Directory) edit(ctx context.Context, tenant string, edits ...lua.EditArgs) ([]bool, error) {
	var b pipeline.Batch
	handles := make([]*pipeline.Handle[bool], len(edits))
	for i, e := range edits {
		handles[i] = lua.Edit(&b, d.store, TenantRoot(tenant), e)
	}
	done := make([]bool, len(edits))
	for i, h := range handles {
		var err error
		if done[i], err = h.Wait(ctx); err != nil {
			return nil, fmt.Errorf("tenant %q: %w", tenant, err)
		}
	}
	return done, nil
}

// readBatch bounds what one flush reads, so that a long list stays within the store's timeout.
const readBatch = 500

// read returns the records that exist, in order; names are their Redis keys, hashes[i] that of a key.
func (d *Directory) read(ctx context.Context, tenant string, refs []Ref, names []string) ([]Entry, error) {
	entries := make([]Entry, 0, len(refs))
	for len(refs) > 0 {
		n := min(len(refs), readBatch)
		var b pipeline.Batch
		handles := make([]*pipeline.Handle[map[string]string], n)
		for i := range n {
			handles[i] = pipeline.Declare(&b, pipeline.Command{Store: d.store, Name: "HGETALL", Key: names[i]},
				func(m rueidis.RedisMessage) (map[string]string, error) { return m.AsStrMap() })
		}
		for i, h := range handles {
			fields, err := h.Wait(ctx)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", refs[i], err)
			}
			if len(fields) > 0 {
				_, hash, _ := strings.Cut(names[i], ":key:")
				entries = append(entries, Entry{Ref: refs[i], Fields: fields, hash: hash})
			}
		}
		refs, names = refs[n:], names[n:]
	}
	return entries, nil
}

// now is Redis' clock: records and the scripts that judge them must agree on the time.
func (d *Directory) now(ctx context.Context) (time.Time, error) {
	m, err := d.store.Do(ctx, "TIME", "")
	if err != nil {
		return time.Time{}, fmt.Errorf("time: %w", err)
	}
	parts, err := m.AsStrSlice()
	if err != nil || len(parts) != 2 {
		return time.Time{}, fmt.Errorf("time: unexpected reply")
	}
	seconds, err1 := strconv.ParseInt(parts[0], 10, 64)
	micros, err2 := strconv.ParseInt(parts[1], 10, 64)
	return time.UnixMilli(seconds*1000 + micros/1000).UTC(), errors.Join(err1, err2)
}

// named adds an id that its record's key does not show to the fields, unless they give a name already.
func named(r Ref, fields [][2]string) [][2]string {
	isName := func(f [2]string) bool { return f[0] == "name" }
	if SafeID(r.ID) == r.ID || slices.ContainsFunc(fields, isName) {
		return fields
	}
	return append(fields, [2]string{"name", r.ID})
}

func stamp(now time.Time) [2]string {
	return [2]string{"created_at", strconv.FormatInt(now.UnixMilli(), 10)}
}

// recordName is the Redis key of r; hash is that of a key.
func recordName(r Ref, hash string) string {
	switch r.Kind {
	case KindTeam:
		return TeamPolicy(r.Tenant, r.ID)
	case KindUser:
		return UserPolicy(r.Tenant, r.ID)
	case KindKey:
		return KeyRecord(r.Tenant, hash)
	}
	return TenantRoot(r.Tenant)
}

// editOf addresses r for the edit script: suffixes below the tenant's root.
func editOf(r Ref, hash string, mode lua.EditMode) lua.EditArgs {
	root := TenantRoot(r.Tenant)
	edit := lua.EditArgs{Mode: mode, Record: strings.TrimPrefix(recordName(r, hash), root)}
	index := ""
	switch r.Kind {
	case KindTeam:
		index = TeamIndex(r.Tenant)
	case KindUser:
		index = UserIndex(r.Tenant)
	case KindKey:
		index, edit.Value = KeyIndex(r.Tenant), hash
	default:
		return edit
	}
	edit.Index, edit.Member = strings.TrimPrefix(index, root), r.ID
	return edit
}
