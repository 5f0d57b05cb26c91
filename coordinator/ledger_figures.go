package coordinator

// Unsettled is how many settlements wait to be sent again because Redis did not acknowledge them.
func (l *Ledger) Unsettled() int { return l.unsettled.count() }
