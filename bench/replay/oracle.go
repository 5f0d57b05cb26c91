package main

// oracle sees every cache, every prompt not computed yet and every answer under way, and sends each request to where its
// first token comes soonest if nothing more arrives. How far the step under way is it does not see.
type oracle struct{ s *simulation }

func (p oracle) place(j *job) int {
	best, least := 0, 0.0
	for i, b := range p.s.engineList {
		if t := p.expected(b, j); i == 0 || t < least {
			best, least = i, t
		}
	}
	return best
}

func (p oracle) done(*job) {}

// expected is the time to the first token of j on b in ms.
func (p oracle) expected(b *backend, j *job) float64 {
	tokens := float64(b.backlog() + j.prompt - b.warm(j.request)*b.block)
	n, context := b.decoding()
	step := b.profile.StepMS(b.profile.Chunk, context)
	room := float64(max(1, b.profile.Chunk-n))
	if tokens <= room {
		return b.profile.StepMS(int(tokens)+n, context)
	}
	return tokens / room * step
}
