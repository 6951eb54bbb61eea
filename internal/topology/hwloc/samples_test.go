package hwloc_test

// samples are small files of each version.
var samples = map[string]string{
	"version 1": `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology>
  <object type="Machine" os_index="0" cpuset="0x0000000f" online_cpuset="0x00000007">
    <distances nbobjs="2" relative_depth="1" latency_base="10.000000">
      <latency value="1.000000"/><latency value="2.100000"/><latency value="2.100000"/><latency value="1.000000"/>
    </distances>
    <object type="NUMANode" os_index="0" cpuset="0x00000003" local_memory="1073741824">
      <object type="Socket" os_index="0" cpuset="0x00000003">
        <object type="Cache" cpuset="0x00000003" depth="3" cache_type="0">
          <object type="Core" os_index="0" cpuset="0x00000003">
            <object type="PU" os_index="0" cpuset="0x00000001"/>
            <object type="PU" os_index="1" cpuset="0x00000002"/>
          </object>
        </object>
      </object>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-05]">
        <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[02-02]" pci_busid="0000:00:01.0" pci_type="0604 [8086:6f04] [0000:0000] 01">
          <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0302 [10de:15f8] [10de:118f] a1"/>
        </object>
        <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41"/>
      </object>
    </object>
    <object type="NUMANode" os_index="1" cpuset="0x0000000c" local_memory="2147483648">
      <object type="Core" os_index="1" cpuset="0x00000004"><object type="PU" os_index="2" cpuset="0x00000004"/></object>
      <object type="Core" os_index="2" cpuset="0x00000008"><object type="PU" os_index="3" cpuset="0x00000008"/></object>
    </object>
  </object>
</topology>
`,
	"version 2": `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000001,,0x00000001">
    <object type="Package" os_index="0" cpuset="0x00000001">
      <object type="NUMANode" os_index="0" cpuset="0x00000001" local_memory="1073741824"/>
      <object type="NUMANode" os_index="2" cpuset="0x00000001" local_memory="1073741824" subtype="GPUMemory"/>
      <object type="L3Cache" cpuset="0x00000001" cache_type="0">
        <object type="Core" os_index="0" cpuset="0x00000001"><object type="PU" os_index="0" cpuset="0x00000001"/></object>
      </object>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-05]">
        <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1">
          <object type="OSDev" name="nvml0" subtype="NVML" osdev_type="1">
            <info name="GPUModel" value="NVIDIA A100"/>
            <info name="NVIDIAUUID" value="GPU-00000000-0000-0000-0000-000000000001"/>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00">
          <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          <object type="OSDev" name="ib0" osdev_type="2"/>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x00000001,,0x0">
      <object type="NUMANode" os_index="1" cpuset="0x00000001,,0x0" local_memory="1073741824"/>
      <object type="Core" os_index="0" cpuset="0x00000001,,0x0"><object type="PU" os_index="64" cpuset="0x00000001,,0x0"/></object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="3" kind="5" name="NUMALatency" indexing="os">
    <indexes length="6">0 1 2 </indexes>
    <u64values length="15">10 21 80 21 </u64values>
    <u64values length="15">10 90 80 90 10 </u64values>
  </distances2>
</topology>
`,
	"version 3": `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc3.dtd">
<topology version="3.0">
  <object type="Machine" cpuset="0x00000003">
    <info name="Backend" value="Linux"/>
    <object type="NUMANode" os_index="0" cpuset="0x00000003" local_memory="1073741824"/>
    <object type="Package" os_index="0" cpuset="0x00000003">
      <object type="Core" os_index="0" cpuset="0x00000003">
        <object type="PU" os_index="0" cpuset="0x00000001"/><object type="PU" os_index="1" cpuset="0x00000002"/>
      </object>
    </object>
    <object type="Bridge" bridge_type="0-1">
      <object type="PCIDev" pci_busid="0000:34:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1 00"/>
      <object type="PCIDev" pci_busid="0000:35:00.0" pci_type="0380 [1002:7408] [1002:0b0c] 00 00"/>
    </object>
  </object>
</topology>
`,
}
