// Package peers starts what headgate is measured beside, and headgate itself, each on one core with the same engines, the
// same key and the same Redis: nginx bare, nginx with the gateway's work in Lua (nginx.conf.tmpl, gate.lua), the same with
// its counters in Redis (store.lua and the naive-*.lua scripts), and the LiteLLM proxy in its config-file mode
// (litellm.yaml.tmpl). No part of the product.
//
// Invariants:
//
//	I1. A peer that was handed out serves: a whole answer and a whole stream of an engine came through it. (TestPeers)
//	I2. nginx with Lua does what headgate does: a wrong key is refused, usage is asked of the engine and stands in the
//	    usage line. (TestPeers)
//	I3. No peer outlives the Site it belongs to. (TestPeers)
package peers
