package gateway

import (
	"context"
	"net/url"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/pipeline"
)

// A Responses object lies in the memory of the engine that made it. Who continues it (previous_response_id), reads it or
// cancels it must go there, from whatever replica; and only its own tenant may: an engine knows no tenants, so an id that
// the tenant's part of Redis does not name never reaches one. // I8

// askHolder passes a question about a response to the engine that holds it. It counts as no request and takes no slot: a
// cancellation that waited for one would wait for what it is to end.
func (r *request) askHolder() {
	var found *pipeline.Handle[string]
	_, no := r.recognise(func() { found = r.declareHolder(r.id) })
	started := time.Now()
	if no == nil {
		no = r.findHolder(found, r.id, "id")
	}
	r.redis += time.Since(started)
	if no != nil {
		r.refuse(no)
		return
	}
	r.record.Pool = r.holder.Pool
	r.backends = []*cluster.Backend{r.holder}
	r.place = coordinator.Place{State: coordinator.Placed, Backend: r.holder.ID}
	r.scan.Stream = asksForStream(r.x.Query())
	r.record.Stream = r.scan.Stream
	r.forward()
}

func asksForStream(query string) bool {
	values, _ := url.ParseQuery(query)
	return values.Get("stream") == "true" || values.Get("stream") == "True" || values.Get("stream") == "1"
}

// declareHolder declares the look-up of the backend that holds a response; nil when this replica remembers it.
func (r *request) declareHolder(id string) *pipeline.Handle[string] {
	if _, known := r.g.deps.Responses.Known(r.key.tenant, id); known {
		return nil
	}
	return r.g.deps.Responses.Find(&r.batch, r.key.tenant, id)
}

// declarePrevious is declareHolder for the response the request continues. One this replica remembers takes no wait.
func (r *request) declarePrevious() *pipeline.Handle[string] {
	if r.scan.Previous == "" {
		return nil
	}
	if backend, known := r.g.deps.Responses.Known(r.key.tenant, r.scan.Previous); known {
		r.holder = r.holderOf(backend)
	}
	return r.declareHolder(r.scan.Previous)
}

// findHolder takes the backend that holds the response, or says that there is none: nobody of this tenant made it, it
// was too long ago, or its engine is gone. param names what the client sent the id in.
func (r *request) findHolder(found *pipeline.Handle[string], id, param string) *refusal {
	backend, known := r.g.deps.Responses.Known(r.key.tenant, id)
	if !known && found != nil {
		var err error
		if backend, err = found.Wait(r.ctx); err == nil && backend == "" {
			backend, err = r.findAgain(id)
		}
		if err != nil {
			return r.withoutRedis(err)
		}
	}
	if r.holder = r.holderOf(backend); r.holder == nil {
		return refusalOf(protocol.ResponseNotFound(bounded(id), param))
	}
	return nil
}

// holderOf is the backend of that id in any pool as known now, but in the model's if one is asked for; nil: it is gone.
func (r *request) holderOf(id string) *cluster.Backend {
	for _, p := range r.g.deps.Cluster.Pools() {
		if r.model.Pool != "" && p.Name != r.model.Pool {
			continue
		}
		for _, b := range p.Backends {
			if b.ID == id {
				return b
			}
		}
	}
	return nil
}

const (
	holderPause = 50 * time.Millisecond // until an id nobody knows is looked for again; each further time waits twice as long
	// holderMost is the longest pause. All of them, 750 ms, outlast the call that tells the fleet of a response: it is on
	// its way before the client has the id, and has HG_REDIS_TIMEOUT, 450 ms by default.
	holderMost = 400 * time.Millisecond
)

// findAgain is for a client that was faster than Redis: the replica that served the response writes its name without
// letting the client wait, and the client may come back through another one. It returns "" for an id nobody gave.
func (r *request) findAgain(id string) (backend string, err error) {
	for pause := holderPause; backend == "" && err == nil && pause <= holderMost; pause *= 2 {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			backend, err = r.g.deps.Responses.Find(&r.batch, r.key.tenant, id).Wait(r.ctx)
		case <-r.ctx.Done():
			timer.Stop()
			err = context.Cause(r.ctx)
		}
	}
	return backend, err
}

// contextWindow is the most tokens a prompt of the model can have on any backend; 0: none of them said.
func (r *request) contextWindow() (most int64) {
	if pool, served := r.g.deps.Cluster.Pool(r.model.Pool); served {
		for _, b := range pool.Backends {
			most = max(most, b.MaxModelLen(r.model.Name))
		}
	}
	return most
}

// keepResponse remembers who holds the response that is being answered, for all replicas. It is called before the client
// can know the id, and nobody waits for it.
func (r *request) keepResponse(id string) {
	if !r.route.kept || r.scan.Unstored || r.response != "" {
		return
	}
	if _, fits := responseID(id); !fits {
		return
	}
	r.response = id
	post := r.g.deps.Pipeline.Post()
	r.g.deps.Responses.Keep(post, r.key.tenant, id, r.backend.ID)
	post.Send()
}
