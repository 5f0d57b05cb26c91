package coordinator

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// keyShape is that of keys made here: the secret has no dash, so the last one splits.
var keyShape = regexp.MustCompile(`^sk-([a-z0-9][a-z0-9_-]{0,62})-[0-9A-Za-z]{32,}$`)

// FindSecret returns the key whose secret this is: an imported one by its alias, else the one of the tenant the secret
// names. The error does not quote it.
func (d *Directory) FindSecret(ctx context.Context, secret string) (Entry, error) {
	hash := HashKey(secret)
	m, err := d.store.Do(ctx, "GET", Alias(hash))
	if err != nil {
		return Entry{}, fmt.Errorf("key by its secret: %w", err)
	}
	tenant, _ := m.ToString()
	if shape := keyShape.FindStringSubmatch(secret); tenant == "" && shape != nil {
		tenant = shape[1]
	}
	if tenant == "" {
		return Entry{}, fmt.Errorf("a key with this secret %w", ErrNotFound)
	}
	entries, err := d.read(ctx, tenant, []Ref{{Kind: KindKey, Tenant: tenant, ID: hash[:12]}}, []string{KeyRecord(tenant, hash)})
	if err != nil {
		return Entry{}, err
	}
	if len(entries) == 0 {
		return Entry{}, fmt.Errorf("a key with this secret %w in tenant %q", ErrNotFound, tenant)
	}
	return entries[0].underItsID(), nil
}

// LooksSecret reports whether a person may have given a key's secret where an id was asked for. It must not be shown then.
func LooksSecret(text string) bool { return strings.HasPrefix(text, "sk-") && len(text) >= 20 }
