package engine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Every token is four bytes that need no escape in JSON, so that text and token counts agree, and the next turn of a
// conversation finds the blocks of its own previous answer.
var words = [64]string{
	" ant", " art", " bay", " bee", " big", " box", " cat", " cup", " day", " dew", " dog", " dry", " ear", " egg", " elm", " far",
	" few", " fig", " fir", " fox", " fun", " gem", " hay", " hen", " hot", " ice", " ink", " ivy", " jam", " joy", " key", " kit",
	" law", " leg", " log", " map", " mud", " new", " nut", " oak", " old", " one", " owl", " pea", " pen", " pie", " red", " rye",
	" sea", " shy", " sky", " sun", " tea", " the", " tin", " toy", " two", " van", " wax", " web", " yak", " yes", " zip", " zoo",
}

// tokenText is token i of the text with this seed.
func tokenText(seed uint64, i int) []byte {
	x := seed + uint64(i)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return []byte(words[(x^x>>31)%64])
}

// usualLength is how long the model "wants" to answer: 20 to 60 tokens, the end token included.
func usualLength(seed uint64) int { return 20 + int(seed>>7%41) }

// seedOf mixes the engine's seed, the hash of the prompt and the number of the choice.
func seedOf(engine, prompt uint64, choice int) uint64 {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], engine)
	binary.LittleEndian.PutUint64(b[8:], prompt)
	binary.LittleEndian.PutUint64(b[16:], uint64(choice))
	return xxh3.Hash(b[:])
}
