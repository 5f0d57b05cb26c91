package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
)

// TenantRoot is the policy hash of a tenant; everything of the tenant lies below it, in its hash slot.
func TenantRoot(tenant string) string { return "hg:{t:" + tenant + "}" }

// KeyRecord is the record of one API key, by the SHA-256 of the whole key.
func KeyRecord(tenant, keyHash string) string { return TenantRoot(tenant) + ":key:" + keyHash }

// TeamPolicy, UserPolicy: policy hashes below the tenant.
func TeamPolicy(tenant, team string) string { return TenantRoot(tenant) + ":team:" + SafeID(team) }
func UserPolicy(tenant, user string) string { return TenantRoot(tenant) + ":user:" + SafeID(user) }

// RateCounter is the sliding minute of one scope.
func RateCounter(tenant, scope, id string) string {
	return TenantRoot(tenant) + ":rate:" + scope + ":" + SafeID(id)
}

// SpendCounter is the money and the tokens of one scope in one period.
func SpendCounter(tenant, scope, id, period string) string {
	return TenantRoot(tenant) + ":spend:" + scope + ":" + SafeID(id) + ":" + period
}

// OpenReservations, Reservations, Settled, Parallel, Usage: the ledger's own keys below the tenant.
func OpenReservations(tenant string) string { return TenantRoot(tenant) + ":open" }
func Reservations(tenant string) string     { return TenantRoot(tenant) + ":reservations" }
func Settled(tenant string) string          { return TenantRoot(tenant) + ":settled" }
func Parallel(tenant string) string         { return TenantRoot(tenant) + ":parallel" }
func UsageStream(tenant string) string      { return TenantRoot(tenant) + ":usage" }

// CacheEntry is a stored answer.
func CacheEntry(tenant, hash string) string { return TenantRoot(tenant) + ":cache:" + hash }

// ResponseHolder is the backend that holds a Responses object.
func ResponseHolder(tenant, id string) string { return TenantRoot(tenant) + ":response:" + SafeID(id) }

// Alias names the tenant of an imported key.
func Alias(keyHash string) string { return "hg:alias:" + keyHash }

// ReplicaTenants is the set of tenants in which a replica has open reservations.
func ReplicaTenants(replica string) string { return "hg:replica:" + replica + ":tenants" }

// PoolIndex and BackendIndex are sets of names for people who look: of pools, and of a pool's backends as in key names. Each
// beat may add to them and nothing is taken out: what has no record is gone.
func PoolIndex() string               { return "hg:pools" }
func BackendIndex(pool string) string { return PoolRoot(pool) + ":backends" }

// PoolRoot tags everything of a pool into one hash slot.
func PoolRoot(pool string) string { return "hg:{p:" + pool + "}" }

// BackendRecord is the shared state of one backend.
func BackendRecord(pool, id string) string { return PoolRoot(pool) + ":backend:" + id }

// Held is the leases of one replica in a pool.
func Held(pool, replica string) string { return PoolRoot(pool) + ":held:" + replica }

// Replicas is the last beat of each replica in a pool.
func Replicas(pool string) string { return PoolRoot(pool) + ":replicas" }

// Queue is the waiting requests of a pool.
func Queue(pool string) string { return PoolRoot(pool) + ":queue" }

// Arrivals is the waiting requests of a pool in the order in which they came; Waiting what one replica waits for there.
func Arrivals(pool string) string         { return PoolRoot(pool) + ":arrivals" }
func Waiting(pool, replica string) string { return PoolRoot(pool) + ":waiting:" + replica }

// Turns is the counters of a pool: of its queue, and of its prefix index.
func Turns(pool string) string { return PoolRoot(pool) + ":turns" }

// Unwell is what readers of backends found unwell; Flow what passes through each replica, and the advice that follows.
func Unwell(pool string) string { return PoolRoot(pool) + ":unwell" }
func Flow(pool string) string   { return PoolRoot(pool) + ":flow" }

// PrefixIndex is one of the 16 hashes of one generation of the prefix index.
func PrefixIndex(pool string, generation int64, bucket int) string {
	return PoolRoot(pool) + ":prefix:" + strconv.FormatInt(generation, 10) + ":" + strconv.Itoa(bucket)
}

// GrantChannel announces grants to one replica.
func GrantChannel(replica string) string { return "hg:grant:" + replica }

// TenantIndex, TeamIndex, UserIndex: the names for which the directory made a record, as sets.
func TenantIndex() string            { return "hg:tenants" }
func TeamIndex(tenant string) string { return TenantRoot(tenant) + ":teams" }
func UserIndex(tenant string) string { return TenantRoot(tenant) + ":users" }

// KeyIndex maps key ids to the SHA-256 of the key, as a hash: a key's record is found by what a client sends, and
// people name it by its id.
func KeyIndex(tenant string) string { return TenantRoot(tenant) + ":keys" }

var safeID = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// SafeID is id as it stands in key names: itself, or ~ and 32 hex digits of its SHA-256 where it could break a name.
// The empty id stays empty.
func SafeID(id string) string {
	if id == "" || isSafe(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "~" + hex.EncodeToString(sum[:16])
}

// isSafe is safeID without the machine behind it: it is asked several times per request.
func isSafe(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', 'A' <= c && c <= 'Z', c == '.', c == '_', c == '@', c == '-':
		default:
			return false
		}
	}
	return 0 < len(id) && len(id) <= 64
}
