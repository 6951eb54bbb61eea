package job

import (
	"fmt"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// line is what is said about a setting.
type line struct{ job, key, text string }

// String returns the line.
func (l line) String() string { return fmt.Sprintf("job %s: %s: %s", l.job, l.key, l.text) }

// together joins lines that differ in the number of a CPU alone, so that a node of
// many has one line in slurmd's log: "cpuidle/cpu0-255/latency".
func together(lines []line) []line {
	var list []line
	at := map[line]int{} // by the line with a star for the number
	numbers := map[line]idset.Set{}
	for _, l := range lines {
		folder, rest, _ := strings.Cut(l.key, "/")
		thing, name, found := strings.Cut(rest, "/")
		word := strings.TrimRight(thing, "0123456789")
		number, err := strconv.Atoi(thing[len(word):])
		if !found || err != nil || folder != "cpuidle" && folder != "cpufreq" {
			list = append(list, l)
			continue
		}
		same := line{l.job, folder + "/" + word + "*/" + name, l.text}
		i, has := at[same]
		if !has {
			i = len(list)
			at[same] = i
			list = append(list, l)
		}
		numbers[same] = numbers[same].Or(idset.Of(number))
		list[i].key = fmt.Sprintf("%s/%s%v/%s", folder, word, numbers[same], name)
	}
	return list
}
