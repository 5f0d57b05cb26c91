package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// CreateKey makes a key with changes (name, team, user, expires_at and the policy) as its record, and the tenant, team
// and user it names where they are missing. The secret is returned here and stored nowhere.
func (d *Directory) CreateKey(ctx context.Context, tenant string, changes Changes) (Entry, string, error) {
	if err := checkRef(Ref{Kind: KindTenant, Tenant: tenant}); err != nil {
		return Entry{}, "", err
	}
	now, err := d.now(ctx)
	if err != nil {
		return Entry{}, "", err
	}
	write, err := changes.first(KindKey, now)
	if err != nil {
		return Entry{}, "", err
	}
	secret := newSecret(tenant)
	r := Ref{Kind: KindKey, Tenant: tenant, ID: "key_" + newULID(now)}
	write = append([][2]string{{"id", r.ID}}, append(write, stamp(now))...)
	entry, err := d.writeKey(ctx, newKey{r, HashKey(secret), write, changes}, now)
	if err != nil {
		return Entry{}, "", err
	}
	// From here on nothing may fail: the secret cannot be shown again.
	return entry, secret, nil
}

// newKey is a key's record before it is written.
type newKey struct {
	Ref
	hash   string
	write  [][2]string // all its fields
	owners Changes     // may name a team and a user
}

// writeKey makes the record, and its tenant, team and user where they are missing.
func (d *Directory) writeKey(ctx context.Context, k newKey, now time.Time) (Entry, error) {
	made, err := d.makeTenant(ctx, k.Ref, now)
	if err != nil {
		return Entry{}, err
	}
	owners, err := d.makeOwners(ctx, k.Tenant, k.owners, now)
	if err != nil {
		return Entry{}, err
	}
	edit := editOf(k.Ref, k.hash, lua.EditCreate)
	edit.Write = k.write
	done, err := d.edit(ctx, k.Tenant, edit)
	if err == nil && !done[0] {
		err = fmt.Errorf("%s %w", k.Ref, ErrExists)
	}
	if err != nil {
		return Entry{}, err
	}
	entry := Entry{Ref: k.Ref, Fields: map[string]string{}, Made: append(made, owners...), hash: k.hash}
	for _, f := range k.write {
		entry.Fields[f[0]] = f[1]
	}
	return entry, nil
}

// HashKey is the name under which a key's record stands: the SHA-256 of the whole key as sent, in hex.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Reindex lists what stands below the tenant and was made by hand: keys, teams and users. It looks at every key name of
// the node that owns the tenant, a thousand per round trip.
func (d *Directory) Reindex(ctx context.Context, tenant string) error {
	_, err := d.scanKeys(ctx, tenant)
	if err != nil {
		return err
	}
	for _, kind := range []Kind{KindTeam, KindUser} {
		prefix := ":" + string(kind) + ":"
		names, err := d.scan(ctx, tenant, prefix+"*")
		if err != nil {
			return err
		}
		for _, name := range names {
			id := strings.TrimPrefix(name, TenantRoot(tenant)+prefix)
			if SafeID(id) != id {
				continue // a hashed name: the id it stands for is not known
			}
			if err := d.file(ctx, Ref{Kind: kind, Tenant: tenant, ID: id}, ""); err != nil {
				return err
			}
		}
	}
	return d.file(ctx, Ref{Kind: KindTenant, Tenant: tenant}, "")
}

// findKey looks a key up by id in the index, then by name among the listed keys, then among all records of the tenant.
func (d *Directory) findKey(ctx context.Context, r Ref) (Entry, error) {
	if err := checkRef(r); err != nil {
		return Entry{}, err
	}
	m, err := d.store.Do(ctx, "HGET", KeyIndex(r.Tenant), r.ID)
	if err != nil {
		return Entry{}, fmt.Errorf("%s: %w", r, err)
	}
	if hash, err := m.ToString(); err == nil {
		entries, err := d.read(ctx, r.Tenant, []Ref{r}, []string{KeyRecord(r.Tenant, hash)})
		if err != nil {
			return Entry{}, err
		}
		if len(entries) == 1 {
			return entries[0].underItsID(), nil
		}
	}
	for _, look := range []func(context.Context, string) ([]Entry, error){d.listKeys, d.scanKeys} {
		entries, err := look(ctx, r.Tenant)
		if err != nil {
			return Entry{}, err
		}
		if e, err := pickKey(r, entries); !errors.Is(err, ErrNotFound) {
			return e, err
		}
	}
	return Entry{}, fmt.Errorf("%s %w", r, ErrNotFound)
}

// pickKey returns the one entry with r's id, else the one with that name.
func pickKey(r Ref, entries []Entry) (Entry, error) {
	var named []Entry
	for _, e := range entries {
		if e.before {
			continue
		}
		if e.ID == r.ID {
			return e, nil
		}
		if e.Fields["name"] == r.ID {
			named = append(named, e)
		}
	}
	switch len(named) {
	case 0:
		return Entry{}, fmt.Errorf("%s %w", r, ErrNotFound)
	case 1:
		return named[0], nil
	}
	ids := make([]string, len(named))
	for i, e := range named {
		ids[i] = e.ID
	}
	return Entry{}, invalidf("%d keys of tenant %q are named %q: use the id (%s)",
		len(named), r.Tenant, r.ID, strings.Join(ids, ", "))
}

func (d *Directory) listKeys(ctx context.Context, tenant string) ([]Entry, error) {
	m, err := d.store.Do(ctx, "HGETALL", KeyIndex(tenant))
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	index, err := m.AsStrMap()
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	refs, names := make([]Ref, 0, len(index)), make([]string, 0, len(index))
	for _, id := range slices.Sorted(maps.Keys(index)) {
		refs = append(refs, Ref{Kind: KindKey, Tenant: tenant, ID: id})
		names = append(names, KeyRecord(tenant, index[id]))
	}
	entries, err := d.read(ctx, tenant, refs, names)
	if err != nil {
		return nil, err
	}
	return d.refile(ctx, tenant, entries)
}

// refile mends the index where a record got its id by hand after it was listed, and returns each record once.
func (d *Directory) refile(ctx context.Context, tenant string, entries []Entry) ([]Entry, error) {
	seen := map[string]bool{}
	kept := entries[:0]
	for _, e := range entries {
		if right := e.underItsID(); right.ID != e.ID {
			if err := d.file(ctx, right.Ref, right.hash); err != nil {
				return nil, err
			}
			if _, err := d.store.Do(ctx, "HDEL", KeyIndex(tenant), e.ID); err != nil {
				return nil, err
			}
			e = right
		}
		if !seen[e.hash] {
			seen[e.hash] = true
			kept = append(kept, e)
		}
	}
	slices.SortFunc(kept, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
	return kept, nil
}

// underItsID is the entry by the id its record says, where that says one.
func (e Entry) underItsID() Entry {
	if id := e.Fields["id"]; id != "" {
		e.ID = id
	}
	return e
}

// scanKeys finds every key record of the tenant and lists those that have an id. One without an id goes by the first
// 12 digits of its hash.
func (d *Directory) scanKeys(ctx context.Context, tenant string) ([]Entry, error) {
	names, err := d.scan(ctx, tenant, ":key:*")
	if err != nil {
		return nil, err
	}
	entries, err := d.read(ctx, tenant, make([]Ref, len(names)), names)
	if err != nil {
		return nil, err
	}
	replaced := map[string]bool{}
	for _, e := range entries {
		replaced[e.Fields["previous"]] = true
	}
	for i := range entries {
		e := &entries[i]
		e.Ref = Ref{Kind: KindKey, Tenant: tenant, ID: e.Fields["id"]}
		if e.ID == "" {
			e.ID = e.hash[:min(12, len(e.hash))]
		}
		if e.before = replaced[e.hash]; e.before {
			continue // the id is that of the key that took its place
		}
		if err := d.file(ctx, e.Ref, e.hash); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// scan returns the names of what stands below the tenant and fits pattern, each once, in order.
func (d *Directory) scan(ctx context.Context, tenant, pattern string) ([]string, error) {
	var names []string
	for cursor := "0"; ; {
		var b pipeline.Batch
		page, err := lua.Find(&b, d.store, TenantRoot(tenant), cursor, pattern).Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("tenant %q: %w", tenant, err)
		}
		names = append(names, page.Keys...)
		if cursor = page.Next; cursor == "0" {
			slices.Sort(names)
			return slices.Compact(names), nil
		}
	}
}

// deleteKeysOf removes the keys that refer to r, or refuses when there are some and withKeys is false. // D3
func (d *Directory) deleteKeysOf(ctx context.Context, r Ref, withKeys bool) error {
	entries, err := d.scanKeys(ctx, r.Tenant)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool {
		owner := e.Fields[string(r.Kind)]
		return r.Kind != KindTenant && owner != r.ID && owner != SafeID(r.ID)
	})
	if len(entries) > 0 && !withKeys {
		return fmt.Errorf("%s is %w: keys that refer to it: %d, the first is %s", r, ErrInUse, len(entries), entries[0].ID)
	}
	for _, e := range entries {
		if err := d.removeKey(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// removeKey removes one record of a key, its line in the index and its alias.
func (d *Directory) removeKey(ctx context.Context, e Entry) error {
	if _, err := d.edit(ctx, e.Tenant, editOf(e.Ref, e.hash, lua.EditRemove)); err != nil {
		return err
	}
	_, err := d.store.Do(ctx, "DEL", Alias(e.hash))
	return err
}

// secretLength is the number of base62 characters of a secret: 238 bits.
const secretLength = 40

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newSecret is a new key of tenant: sk-<tenant>-<secret>.
func newSecret(tenant string) string {
	secret := make([]byte, 0, secretLength)
	for len(secret) < secretLength {
		var random [64]byte
		rand.Read(random[:])
		for _, c := range random {
			// 248 is the largest multiple of 62 in a byte: above it the first characters would come more often.
			if c < 248 && len(secret) < secretLength {
				secret = append(secret, base62[c%62])
			}
		}
	}
	return "sk-" + tenant + "-" + string(secret)
}

const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newULID is 48 bits of milliseconds and 80 random bits in Crockford's base 32: ids sort by the time they were made.
func newULID(now time.Time) string {
	var raw [16]byte
	rand.Read(raw[6:])
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		raw[i] = byte(ms >> (40 - 8*i))
	}
	// 128 bits in 26 digits of 5: the first digit has the two zero bits that are missing.
	var text [26]byte
	for i := range text {
		var digit byte
		for bit := 5*i - 2; bit < 5*i+3; bit++ {
			digit <<= 1
			if bit >= 0 {
				digit |= raw[bit/8] >> (7 - bit%8) & 1
			}
		}
		text[i] = crockford[digit]
	}
	return string(text[:])
}
