package gateway

// vet is for clients that wait for 100 Continue before they send the body: whether their key is valid is found out
// first, so that a body nobody will read is not asked for. That is one more wait for Redis (two for an imported key),
// and none for a key that passed here before. It counts no request and reserves nothing. The front sends 100 Continue
// with the first read of the body.
func (r *request) vet() *refusal {
	if len(r.x.Header("Expect")) == 0 || r.x.BodyLength() == 0 {
		return nil
	}
	if _, seen := r.g.deps.Ledger.Seen(r.key.hash); seen {
		return nil
	}
	_, no := r.recognise(nil)
	return no
}
