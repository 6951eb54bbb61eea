package conf

// shippedProfiles are the profiles of a site that has none of the names.
func shippedProfiles() Profiles {
	want := func(value string) Want { return Want{Value: value} }
	return Profiles{
		"training": {
			Missing: MissingSkips, THP: want("always"), Governor: want("performance"), Energy: want("performance"), Swap: want("off"),
			Sysctl: map[string]Want{
				"kernel.numa_balancing": want("0"), "vm.swappiness": want("1"), "vm.zone_reclaim_mode": want("0"),
				"vm.dirty_ratio": want("40"), "vm.dirty_background_ratio": want("10"),
			},
		},
		"inference": {
			Missing: MissingSkips, THP: want("madvise"), Governor: want("performance"), Energy: want("performance"),
			IdleLatency: want("20"), IRQs: want("local"), Swap: want("off"),
			Sysctl: map[string]Want{"kernel.numa_balancing": want("0"), "vm.swappiness": want("1"), "vm.zone_reclaim_mode": want("0")},
		},
		"benchmark": {
			Include: Names{"training", "inference"}, Missing: MissingSkips, THP: want("always"), MinFrequency: want("max"), IdleLatency: want("5"),
			CompactMemory: want("on"), DropCaches: want("all"), GPUClocks: want("high"),
		},
	}
}

// shippedSysctls are those that profiles may set at a site that lists none.
func shippedSysctls() Names {
	return Names{
		"vm.swappiness", "vm.dirty_ratio", "vm.dirty_bytes", "vm.dirty_background_ratio", "vm.dirty_background_bytes",
		"vm.zone_reclaim_mode", "kernel.numa_balancing", "net.ipv4.ip_local_port_range",
	}
}
