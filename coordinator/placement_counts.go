package coordinator

// HeldIn is how many slots of the pool this replica's requests have, as far as it knows.
func (p *Placement) HeldIn(pool string) int { return p.holds.countIn(pool, holding) }

// WaitingIn is how many of this replica's requests wait for a slot of the pool.
func (p *Placement) WaitingIn(pool string) int { return p.holds.countIn(pool, waiting) }
