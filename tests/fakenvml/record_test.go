package fakenvml

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hardware asks the real library and writes the record to the file that it
// names:
//
//	go test -c -o fakenvml.test ./tests/fakenvml
//	FAKENVML_RECORD=h200.record ./fakenvml.test -test.run TestRecordHardware   (there)
//
// Nothing is set.
const hardware = "FAKENVML_RECORD"

// questions are what is asked about GPU 0. Each is read-only.
var questions = []string{
	"SystemGetDriverVersion", "SystemGetNVMLVersion", "SystemGetCudaDriverVersion",
	"GetHandleByUUID GPU-x", "GetHandleByPciBusId seven", "GetHandleByPciBusId 0001:00:07.0",
	"GetIndex 0", "GetIndex 64", "GetName 0", "GetArchitecture 0", "GetMinorNumber 0",
	"GetMemoryAffinity 0 1 0", "GetMemoryAffinity 0 1 1", "GetMemoryAffinity 0 1 2", "GetMemoryAffinity 0 0 0", "GetMemoryAffinity 0 4 0",
	"GetCpuAffinity 0 32", "GetCpuAffinity 0 4", "GetCpuAffinity 0 256", "GetCpuAffinity 0 0",
	"GetCpuAffinityWithinScope 0 32 0", "GetCpuAffinityWithinScope 0 32 1", "GetNumaNodeId 0",
	"GetMigMode 0", "GetMaxMigDeviceCount 0", "mig 0 0", "mig 0 7",
	"GetPowerManagementLimit 0", "GetPowerManagementLimitConstraints 0", "GetPowerManagementDefaultLimit 0", "GetEnforcedPowerLimit 0",
	"GetPowerUsage 0", "GetTotalEnergyConsumption 0",
	"GetSupportedMemoryClocks 0", "GetSupportedGraphicsClocks 0 3201", "GetSupportedGraphicsClocks 0 2201", "GetSupportedGraphicsClocks 0 1",
	"GetMinMaxClockOfPState 0 0 0", "GetMinMaxClockOfPState 0 1 0", "GetMinMaxClockOfPState 0 2 0", "GetMinMaxClockOfPState 0 3 0",
	"GetMinMaxClockOfPState 0 0 2", "GetMinMaxClockOfPState 0 2 2", "GetMinMaxClockOfPState 0 2 16",
	"GetMaxClockInfo 0 0", "GetMaxClockInfo 0 1", "GetMaxClockInfo 0 2", "GetMaxClockInfo 0 3", "GetMaxClockInfo 0 4",
	"GetClockInfo 0 0", "GetClockInfo 0 1", "GetClockInfo 0 2", "GetClockInfo 0 3", "GetClockInfo 0 4",
	"GetClock 0 0 0", "GetClock 0 0 1", "GetClock 0 0 2", "GetClock 0 0 3", "GetClock 0 0 4", "GetClock 0 2 0", "GetClock 0 2 2",
	"GetApplicationsClock 0 0", "GetApplicationsClock 0 2", "GetDefaultApplicationsClock 0 0", "GetDefaultApplicationsClock 0 2",
	"GetPersistenceMode 0", "GetComputeMode 0", "GetEccMode 0", "GetRemappedRows 0",
	"GetCurrentClocksEventReasons 0", "GetCurrentClocksThrottleReasons 0", "GetComputeRunningProcesses 0",
	"GetPerformanceState 0", "GetUtilizationRates 0", "GetTemperature 0 0", "GetTemperature 0 1", "GetMemoryInfo 0",
	"ErrorString 0", "ErrorString 2", "ErrorString 3", "ErrorString 4", "ErrorString 6", "ErrorString 7", "ErrorString 9", "ErrorString 10",
	"ErrorString 13", "ErrorString 15", "ErrorString 16", "ErrorString 19", "ErrorString 23", "ErrorString 27", "ErrorString 999",
}

// changing are questions whose answers differ from one moment, or card, to the next: of
// these the record holds only whether there is an answer.
var changing = regexp.MustCompile(`^Get(PowerUsage|TotalEnergyConsumption|ClockInfo|Clock .* 0$|CurrentClocks|PerformanceState|UtilizationRates|Temperature|MemoryInfo|RemappedRows)`)

func record(answers []string) string {
	var text strings.Builder
	for i, question := range questions {
		answer := answers[i]
		if words := strings.Fields(answer); changing.MatchString(question) && words[len(words)-1] == "SUCCESS" {
			answer = "… SUCCESS"
		}
		fmt.Fprintf(&text, "%s: %s\n", question, answer)
	}
	return text.String()
}

// recordedCalls makes this program's calls in another process.
func recordedCalls(t *testing.T, environment []string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], questions...)
	command.Env = append(append(os.Environ(), asCaller+"=1"), environment...)
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	if len(answers) != len(questions) {
		t.Fatalf("%d answers to %d questions:\n%s", len(answers), len(questions), output)
	}
	return answers
}

func TestRecordHardware(t *testing.T) {
	file := os.Getenv(hardware)
	if file == "" {
		t.Skip(hardware + " names no file: nothing is asked of a real GPU")
	}
	if err := os.WriteFile(file, []byte(record(recordedCalls(t, nil))), 0o644); err != nil { //nolint:gosec // not secret
		t.Fatal(err)
	}
}

// Each recorded call gets the recorded answer from the fake, too.
func TestAnswersOfHardware(t *testing.T) {
	files, err := filepath.Glob("testdata/*.record")
	if err != nil || len(files) == 0 {
		t.Fatalf("no records: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d := H200(1)
			d.GPUs[0].CPUs = "0-15" // the machine had 16
			l := newLibrary(t, d)
			fake := record(recordedCalls(t, l.Environ()))
			want, got := bufio.NewScanner(bytes.NewReader(recorded)), bufio.NewScanner(strings.NewReader(fake))
			lines := 0
			for want.Scan() && got.Scan() {
				lines++
				if want.Text() != got.Text() {
					t.Errorf("hardware %s\n\tfake     %s", want.Text(), got.Text())
				}
			}
			if lines != len(questions) {
				t.Errorf("%d lines compared of %d: record again", lines, len(questions))
			}
		})
	}
}
