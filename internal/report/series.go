package report

import (
	"math"

	"gputune/internal/sample"
)

// maxPoints is how many points a series has at most. When there would be more, two
// become one.
const maxPoints = 96

// NotSampled is the value of a point in whose time nobody looked.
const NotSampled = -1

// Series is how some levels went, from the job's beginning on.
type Series struct {
	Step float64 `json:"seconds"` // that each point stands for
	// SM and Power are means, or NotSampled. One that the GPU does not support is
	// empty.
	SM    []float64 `json:"sm_percent,omitempty"`
	Power []float64 `json:"power_watts,omitempty"`
	// Covered is for how many of its seconds each point was sampled.
	Covered []float64 `json:"covered_seconds"`
}

// add adds levels that stood for some seconds, the last of them at a time since
// the beginning.
func (s *Series) add(at, seconds float64, levels map[sample.Level]sample.Range) {
	if seconds <= 0 || s.Step <= 0 || at <= 0 || math.IsInf(at, 0) {
		return
	}
	from := max(at-seconds, 0)
	for at > s.Step*maxPoints {
		s.halve()
	}
	for i := int(from / s.Step); float64(i)*s.Step < at && i < maxPoints; i++ {
		part := min(at, float64(i+1)*s.Step) - max(from, float64(i)*s.Step)
		if part <= 0 {
			continue
		}
		for len(s.Covered) <= i {
			s.Covered = append(s.Covered, 0)
		}
		for level, list := range map[sample.Level]*[]float64{sample.SMPercent: &s.SM, sample.PowerWatts: &s.Power} {
			value, has := levels[level]
			if !has {
				continue
			}
			for len(*list) <= i {
				*list = append(*list, NotSampled)
			}
			if (*list)[i] == NotSampled {
				(*list)[i] = value.Mean
				continue
			}
			(*list)[i] = ((*list)[i]*s.Covered[i] + value.Mean*part) / (s.Covered[i] + part)
		}
		s.Covered[i] += part
	}
}

// halve makes one point of each two.
func (s *Series) halve() {
	s.SM, s.Power = halved(s.SM, s.Covered), halved(s.Power, s.Covered)
	var covered []float64
	for i := 0; i < len(s.Covered); i += 2 {
		sum := s.Covered[i]
		if i+1 < len(s.Covered) {
			sum += s.Covered[i+1]
		}
		covered = append(covered, sum)
	}
	s.Covered = covered
	s.Step *= 2
}

func halved(list, covered []float64) []float64 {
	var half []float64
	for i := 0; i < len(list); i += 2 {
		sum, weight := 0.0, 0.0
		for j := i; j < min(i+2, len(list)); j++ {
			if list[j] != NotSampled && j < len(covered) {
				sum, weight = sum+list[j]*covered[j], weight+covered[j]
			}
		}
		if weight == 0 {
			half = append(half, NotSampled)
			continue
		}
		half = append(half, sum/weight)
	}
	return half
}

func (s *Series) round() {
	for _, list := range [][]float64{s.SM, s.Power, s.Covered} {
		for i := range list {
			list[i] = math.Round(list[i]*10) / 10
		}
	}
}
