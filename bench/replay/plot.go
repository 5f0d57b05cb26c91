package main

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
)

// writePlot draws one workload: a row per policy and number of replicas, a column of bars per figure.
func writePlot(path string, rows []outcome) error {
	if len(rows) == 0 {
		return nil
	}
	figures := []struct {
		name string
		of   func(outcome) float64
	}{
		{"hits", func(o outcome) float64 { return o.hits }},
		{"ttft p50 s", func(o outcome) float64 { return o.p50 }},
		{"ttft p95 s", func(o outcome) float64 { return o.p95 }},
		{"ttft p99 s", func(o outcome) float64 { return o.p99 }},
		{"load max/mean", func(o outcome) float64 { return o.load }},
	}
	const left, column, bar, top, rowHeight = 250, 210, 130, 50, 20
	c := canvas{image.NewRGBA(image.Rect(0, 0, left+column*len(figures), top+rowHeight*len(rows)+10))}
	draw.Draw(c, c.Bounds(), image.White, image.Point{}, draw.Src)
	c.text(10, 10, rows[0].workload+"   8 engines")
	for i, f := range figures {
		c.text(left+column*i, 30, f.name)
		most := 0.0
		for _, o := range rows {
			if o.policy != "random" && o.policy != "ring" || i == 0 { // they may drown; what they would need is cut
				most = max(most, f.of(o))
			}
		}
		for k, o := range rows {
			v := f.of(o)
			x, y := left+column*i, top+rowHeight*k
			c.box(x, y, max(1, int(bar*min(1, v/max(most, 1e-9)))), rowHeight-6, shade(o.policy))
			c.text(x+bar+6, y+2, short(v))
		}
	}
	for k, o := range rows {
		c.text(10, top+rowHeight*k+2, fmt.Sprintf("%-18s %d", o.policy, o.replicas))
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(png.Encode(f, c), f.Close())
}

func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func shade(policy string) color.Color {
	switch policy {
	case "headgate":
		return color.RGBA{31, 119, 180, 255}
	case "perfect view":
		return color.RGBA{44, 160, 44, 255}
	}
	return color.RGBA{170, 170, 170, 255}
}

type canvas struct{ *image.RGBA }

func (c canvas) box(x, y, width, height int, fill color.Color) {
	draw.Draw(c, image.Rect(x, y, x+width, y+height), image.NewUniform(fill), image.Point{}, draw.Src)
}

// text writes with the letters below, each dot 2 pixels wide and 2 high.
func (c canvas) text(x, y int, text string) {
	for _, r := range text {
		for row, bits := range letters[r] {
			for col := range 3 {
				if (bits-'0')>>(2-col)&1 == 1 {
					c.box(x+2*col, y+2*row, 2, 2, color.Black)
				}
			}
		}
		x += 8
	}
}

// letters are 3 dots wide and 5 high: a digit per row, its bits the dots from the left.
var letters = map[rune]string{
	'0': "75557", '1': "26227", '2': "71747", '3': "71717", '4': "55711", '5': "74717", '6': "74757", '7': "71122", '8': "75757",
	'9': "75717", 'a': "25755", 'b': "65656", 'c': "34443", 'd': "65556", 'e': "74647", 'f': "74644", 'g': "34553", 'h': "55755",
	'i': "72227", 'j': "11152", 'k': "55655", 'l': "44447", 'm': "57755", 'n': "65555", 'o': "25552", 'p': "65644", 'q': "25563",
	'r': "65655", 's': "34216", 't': "72222", 'u': "55557", 'v': "55552", 'w': "55775", 'x': "55255", 'y': "55222", 'z': "71247",
	'.': "00002", '-': "00700", '/': "11244",
}
