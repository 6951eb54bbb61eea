package compare

import "gputune/internal/idset"

// slurmBlock fills the packages one after the other.
func (s *step) slurmBlock() func(int) (cpus, mems idset.Set, failure string) {
	return s.slurm(func(int) int { return 0 })
}

// slurmCyclic puts each task on the next package, which is Slurm's default.
func (s *step) slurmCyclic() func(int) (cpus, mems idset.Set, failure string) {
	return s.slurm(func(task int) int { return task })
}

// slurm deals out whole cores, the same number to each task, beginning with the
// package that first says; what a package lacks comes from the next. Slurm sets
// no memory policy unless told to, and takes no heed of the GPUs.
func (s *step) slurm(first func(task int) int) func(int) (cpus, mems idset.Set, failure string) {
	free := s.byPackage()
	each := max(1, len(s.cores)/max(1, len(s.gpus)))
	given := make([]idset.Set, len(s.gpus))
	for task := range given {
		for range each {
			at := nextFree(free, first(task))
			if at < 0 { // more tasks than cores: they share
				free = s.byPackage()
				at = nextFree(free, first(task))
			}
			if at < 0 {
				break
			}
			given[task] = given[task].Or(free[at][0])
			free[at] = free[at][1:]
		}
	}
	return func(task int) (cpus, mems idset.Set, failure string) { return given[task], idset.Set{}, "" }
}

// byPackage returns the granted cores of each package that has some.
func (s *step) byPackage() [][]idset.Set {
	var packages [][]idset.Set
	rest := s.granted
	for _, p := range s.machine.Packages {
		if in := p.CPUs.And(rest); !in.Empty() {
			packages = append(packages, s.coresIn(in))
			rest = rest.AndNot(in)
		}
	}
	if !rest.Empty() {
		packages = append(packages, s.coresIn(rest))
	}
	return packages
}

// nextFree returns the first package, from first on, that has a core left, -1 if
// none has.
func nextFree(free [][]idset.Set, first int) int {
	for i := range free {
		at := (first + i) % len(free)
		if len(free[at]) > 0 {
			return at
		}
	}
	return -1
}
