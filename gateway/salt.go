package gateway

import (
	"crypto/sha256"
	"encoding/hex"
)

// ownSalts is how every salt of the gateway's own begins. A client may send no such salt: it could otherwise ask for the
// prompts of a team that wants its prefixes kept apart.
const ownSalts = "headgate-"

// salt keeps the prompts of a team (of the tenant, where there is none) apart from all others in the engines' prefix caches,
// where some scope of the request asks for it; "" where none does. What salt the client sent still tells its own prompts apart.
func (r *request) salt(isolate bool, team string) string {
	if !isolate {
		return ""
	}
	sum := sha256.Sum256([]byte(r.key.tenant + "\x00" + team + "\x00" + r.scan.CacheSalt))
	return ownSalts + hex.EncodeToString(sum[:16])
}
