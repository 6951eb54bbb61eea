package nccl_test

var samples = map[string]string{
	"two nodes": `<!-- of a made-up machine -->
<system version="1">
  <cpu numaid="1" affinity="00000000,ffff0000" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:47:00.0" class="0x030200" link_speed="" link_width="16">
        <gpu dev="1" sm="80" rank="0" gdr="1"><nvlink target="0000:07:00.0" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:45:00.0" class="0x020700">
        <nic><net name="mlx5_2" dev="0" speed="200000" port="1" guid="0x1" maxconn="262144" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <!-- <cpu numaid="2" affinity="ffff"/> -->
  <cpu numaid="0" affinity="00000000,0000ffff">
    <pci busid="0000:07:00.0" class="0x030200"><gpu dev="0" sm="80"/></pci>
    <pci busid="0000:08:00.0"/>
  </cpu>
  <cpu numaid="-1"><pci busid="0001:00:00.0" class="0x030000"/></cpu>
</system>
`,
}
