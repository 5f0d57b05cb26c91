package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// rotationsMax bounds how many keys before a key are followed: as many rotations within one grace time.
const rotationsMax = 32

// Rotation is a key in place of another one.
type Rotation struct {
	Entry            // the new record: the same id and policy, so the two share every limit and budget
	Secret string    // of the new key; stored nowhere
	OldEnd time.Time // until when the old key works
}

// Rotate gives the key r a new secret. The old one works for grace, or to its own end where that is earlier; 0: it is
// refused from the next request on. Older keys that have ended are removed.
func (d *Directory) Rotate(ctx context.Context, r Ref, grace time.Duration) (Rotation, error) {
	if grace < 0 {
		return Rotation{}, invalidf("a grace time of %v: want 0 or more", grace)
	}
	old, err := d.findKey(ctx, r)
	if err != nil {
		return Rotation{}, err
	}
	now, err := d.now(ctx)
	if err != nil {
		return Rotation{}, err
	}
	switch {
	case old.Fields["id"] == "":
		return Rotation{}, invalidf("%s has no id: set one before it is rotated", old.Ref)
	case old.Expired(now):
		return Rotation{}, invalidf("%s has ended: set expires_at before it is rotated", old.Ref)
	}
	end := now.Add(grace)
	if own := old.ExpiresAt(); !own.IsZero() && own.Before(end) {
		end = own
	}
	if err := d.forgetEnded(ctx, old, now); err != nil {
		return Rotation{}, err
	}
	secret := newSecret(old.Tenant)
	fresh := Entry{Ref: old.Ref, Fields: maps.Clone(old.Fields), hash: HashKey(secret)}
	fresh.Fields["previous"] = old.hash
	making := editOf(fresh.Ref, fresh.hash, lua.EditCreate)
	for _, name := range slices.Sorted(maps.Keys(fresh.Fields)) {
		making.Write = append(making.Write, [2]string{name, fresh.Fields[name]})
	}
	ending := editOf(old.Ref, old.hash, lua.EditChange)
	ending.Index = "" // the id is the new record's
	ending.Write = [][2]string{{"expires_at", strconv.FormatInt(end.UnixMilli(), 10)}}
	done, err := d.edit(ctx, old.Tenant, making, ending)
	if err == nil && !done[1] {
		err = fmt.Errorf("%s %w any more", old.Ref, ErrNotFound)
		_, _ = d.edit(ctx, old.Tenant, editOf(fresh.Ref, fresh.hash, lua.EditRemove))
	}
	if err != nil {
		return Rotation{}, err
	}
	return Rotation{Entry: fresh, Secret: secret, OldEnd: end}, nil
}

// keysBefore are the records whose place e took, the latest first.
func (d *Directory) keysBefore(ctx context.Context, e Entry) ([]Entry, error) {
	var chain []Entry
	for hash := e.Fields["previous"]; hash != "" && len(chain) < rotationsMax; {
		entries, err := d.read(ctx, e.Tenant, []Ref{e.Ref}, []string{KeyRecord(e.Tenant, hash)})
		if err != nil || len(entries) == 0 {
			return chain, err
		}
		chain = append(chain, entries[0])
		hash = entries[0].Fields["previous"]
	}
	return chain, nil
}

// alsoBefore is edit for the key and for those whose place it took: they share its limits, so they have them alike. A
// key's end is its own.
func (d *Directory) alsoBefore(ctx context.Context, e Entry, edit lua.EditArgs) ([]lua.EditArgs, error) {
	edits := []lua.EditArgs{edit}
	if e.Kind != KindKey {
		return edits, nil
	}
	before, err := d.keysBefore(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, b := range before {
		same := editOf(b.Ref, b.hash, lua.EditChange)
		same.Index = ""
		same.Remove = slices.DeleteFunc(slices.Clone(edit.Remove), func(name string) bool { return name == "expires_at" })
		same.Write = slices.DeleteFunc(slices.Clone(edit.Write), func(f [2]string) bool { return f[0] == "expires_at" })
		if len(same.Write)+len(same.Remove) > 0 {
			edits = append(edits, same)
		}
	}
	return edits, nil
}

// deleteKey removes the key and those whose place it took.
func (d *Directory) deleteKey(ctx context.Context, e Entry) error {
	before, err := d.keysBefore(ctx, e)
	if err != nil {
		return err
	}
	for _, b := range append(slices.Clone(before), e) {
		if err := d.removeKey(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// forgetEnded removes the oldest keys before e, as far as they have ended: one that still works stays reachable from e.
func (d *Directory) forgetEnded(ctx context.Context, e Entry, now time.Time) error {
	before, err := d.keysBefore(ctx, e)
	if err != nil {
		return err
	}
	for _, b := range slices.Backward(before) {
		if !b.Expired(now) {
			return nil
		}
		edit := editOf(b.Ref, b.hash, lua.EditRemove)
		edit.Index = ""
		if _, err := d.edit(ctx, b.Tenant, edit); err != nil {
			return err
		}
		if _, err := d.store.Do(ctx, "DEL", Alias(b.hash)); err != nil {
			return err
		}
	}
	return nil
}
