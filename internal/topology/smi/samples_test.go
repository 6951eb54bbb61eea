package smi_test

var samples = map[string]string{
	"tabs": "$ nvidia-smi topo -m\n\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
		"GPU0\t X \tSYS\tPIX\t0-63\t0\t\tN/A\nGPU1\tSYS\t X \tSYS\t\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \t\t\t\t\n\n" +
		"Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n",
	"blanks, lscpu": "        GPU0    GPU1    CPU Affinity\nGPU0     X      SOC     0-5\nGPU1    SOC      X      6-11\n" +
		"On-line CPU(s) list:   0-11\nNUMA node0 CPU(s):     0-5\nNUMA node1 CPU(s):     6-11\n",
	"lscpu -p": "GPU0 CPU Affinity\nGPU0 X 0,2\n# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,1,1,,1,1,1,1\n2,0,0,,,0,0,0\n",
	"Markdown": "| CPU Affinity | NUMA Affinity |  | GPU0 | mlx5_0 |\n|---|---|---|---|---|\n| 0-7 | 0 | GPU0 | X | SYS |\n",
	"numactl": "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 1024 MB\nnode 1 cpus: 2 3\nnode 1 size: 2048 MB\n" +
		"node distances:\nnode   0   1\n  0:  10  21\n  1:  21  10\n",
}
