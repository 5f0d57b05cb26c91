package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
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
	sum := sha256.Sum256([]byte(key))
	return credential{hash: hex.EncodeToString(sum[:]), tenant: tenantOf(key)}, nil
}

// bearer takes the secret out of an Authorization value; the scheme's case does not matter, the secret's does.
func bearer(v string) (secret string, ok bool) {
	scheme, secret, ok := strings.Cut(strings.TrimSpace(v), " ")
	secret = strings.TrimSpace(secret)
	return secret, ok && secret != "" && strings.EqualFold(scheme, "bearer")
}

// keyShape: the tenant may contain dashes, the secret cannot, so the last dash splits.
var keyShape = regexp.MustCompile(`^sk-([a-z0-9][a-z0-9_-]{0,62})-[0-9A-Za-z]{32,}$`)

func tenantOf(key string) string {
	if m := keyShape.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return ""
}

func unauthorized() *refusal {
	return refusalOf(protocol.InvalidAPIKey(), headerField{"Www-Authenticate", "Bearer"})
}
