package draw

import (
	"fmt"
	"math"
)

// The colours of what is no task's. Text on each of them is ink and legible.
const (
	ink       = "#1f2328"
	faint     = "#59636e"
	paper     = "#ffffff"
	edge      = "#8c959f"
	packageBG = "#f6f8fa"
	nodeBG    = "#ffffff"
	cacheBG   = "#eef1f4"
	coreBG    = "#c8d1da"
	gpuBG     = "#dff3e1"
	nicBG     = "#e4ecfb"
	alarm     = "#b42318"
)

// palette is told apart also by most people who do not see all colours.
var palette = []string{
	"#4e9de6", "#f2a33c", "#4bb36b", "#e06c8b", "#9b7fe0", "#c9a227",
	"#3fb8af", "#d9774e", "#7d93b8", "#a6c34c", "#cf7fd0", "#8f8074",
}

// taskColour returns the colour of the n-th task: others than those before it, as
// far as that goes.
func taskColour(n int) string {
	if n < len(palette) {
		return palette[n]
	}
	// Around the circle by the golden angle, which comes near no place twice.
	hue := math.Mod(float64(n)*137.508, 360)
	lightness := []float64{0.62, 0.72, 0.52}[n/len(palette)%3]
	return hsl(hue, 0.55, lightness)
}

func hsl(hue, saturation, lightness float64) string {
	c := (1 - math.Abs(2*lightness-1)) * saturation
	x := c * (1 - math.Abs(math.Mod(hue/60, 2)-1))
	m := lightness - c/2
	rgb := [][3]float64{{c, x, 0}, {x, c, 0}, {0, c, x}, {0, x, c}, {x, 0, c}, {c, 0, x}}[int(hue/60)%6]
	return fmt.Sprintf("#%02x%02x%02x", int(255*(rgb[0]+m)+0.5), int(255*(rgb[1]+m)+0.5), int(255*(rgb[2]+m)+0.5))
}
