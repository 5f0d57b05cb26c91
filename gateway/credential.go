package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/headgate/headgate/gateway/protocol"
)

// credential is the client's API key as the rest may know it: never the key itself.
type credential struct {
	hash   string // SHA-256 of the whole key, hex
	tenant string // from the shape sk-<tenant>-<secret>; "" for a key of another shape
}

// credentialOf finds the one API key of a request, in Authorization: Bearer or X-Api-Key. Two different ones are
// ambiguous; the same twice is fine.
func credentialOf(x head) (credential, *refusal) {
	var key string
	take := func(found string) bool {
		if key != "" && key != found {
			return false
		}
		key = found
		return true
	}
	for _, v := range x.Header("Authorization") {
		if secret, ok := bearer(v); ok && !take(secret) {
			return credential{}, refusalOf(protocol.TwoCredentials())
		}
	}
	for _, v := range x.Header("X-Api-Key") {
		if v = strings.TrimSpace(v); v != "" && !take(v) {
			return credential{}, refusalOf(protocol.TwoCredentials())
		}
	}
	if key == "" {
		return credential{}, refusalOf(protocol.MissingAPIKey(), headerField{"Www-Authenticate", "Bearer"})
	}
	var usual [128]byte // no memory of its own for a key of a usual length
	sum := sha256.Sum256(append(usual[:0], key...))
	var hash [2 * sha256.Size]byte
	hex.Encode(hash[:], sum[:])
	return credential{hash: string(hash[:]), tenant: tenantOf(key)}, nil
}

// bearer takes the secret out of an Authorization value; the scheme's case does not matter, the secret's does.
func bearer(v string) (secret string, ok bool) {
	scheme, secret, ok := strings.Cut(strings.TrimSpace(v), " ")
	secret = strings.TrimSpace(secret)
	return secret, ok && secret != "" && strings.EqualFold(scheme, "bearer")
}

// tenantOf is the tenant in a key of the form sk-<tenant>-<secret>: up to 63 of a-z 0-9 _ - with a letter or digit first,
// and at least 32 of 0-9 A-Z a-z. The tenant may contain dashes, the secret cannot, so the last dash splits.
func tenantOf(key string) string {
	rest, ok := strings.CutPrefix(key, "sk-")
	dash := strings.LastIndexByte(rest, '-')
	if !ok || dash < 1 || dash > 63 || len(rest)-dash-1 < 32 {
		return ""
	}
	tenant, secret := rest[:dash], rest[dash+1:]
	for i := range len(tenant) {
		if c := tenant[i]; !lowerOrDigit(c) && (i == 0 || c != '_' && c != '-') {
			return ""
		}
	}
	for i := range len(secret) {
		if c := secret[i]; !lowerOrDigit(c) && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return tenant
}

func lowerOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func unauthorized() *refusal {
	return refusalOf(protocol.InvalidAPIKey(), headerField{"Www-Authenticate", "Bearer"})
}
