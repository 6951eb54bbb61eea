package job

import (
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// together joins changes that differ in the number of a CPU alone, so that a node
// of many has one line in the Prolog's output: "cpuidle/cpu0-255/latency".
func together(changes []Changed) []Changed {
	type place struct{ before, behind, prior, now string }
	var list []Changed
	at := map[place]int{}
	numbers := map[place]idset.Set{}
	for _, c := range changes {
		folder, rest, _ := strings.Cut(c.Setting, "/")
		thing, name, found := strings.Cut(rest, "/")
		word := strings.TrimRight(thing, "0123456789")
		number, err := strconv.Atoi(thing[len(word):])
		if !found || err != nil || folder != "cpuidle" && folder != "cpufreq" {
			list = append(list, c)
			continue
		}
		p := place{folder + "/" + word, "/" + name, c.Before, c.Now}
		set := numbers[p].Or(idset.Of(number))
		numbers[p] = set
		i, has := at[p]
		if !has {
			i = len(list)
			at[p] = i
			list = append(list, c)
		}
		list[i].Setting = p.before + set.String() + p.behind
	}
	return list
}
