// The checks of `halflife doctor` on simulated machines: folders instead of /proc, /sys and
// /dev/shm, and threads as ranks.
#include "cli/doctor/checks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/stubs/common.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/version.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dist/local_communicator.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class DoctorTest : public testing::Test {
 protected:
  void SetUp() override {
    inputs_.proc = dir_ / "proc";
    inputs_.sys = dir_ / "sys";
    inputs_.shm = dir_ / "shm";
    inputs_.run_folder = dir_ / "runs";
    inputs_.measure = false;
    std::filesystem::create_directories(inputs_.shm);
  }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  // Writes a program that is the only one with this name in PATH.
  void WriteProgram(const std::string& name, const std::string& body) {
    Write("bin/" + name, "#!/bin/sh\n" + body + "\n");
    std::filesystem::permissions(dir_ / "bin" / name, std::filesystem::perms::owner_all);
    ::setenv("PATH", ((dir_ / "bin").string() + ":/usr/bin:/bin").c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }
  static Finding Named(const std::vector<Finding>& findings, const std::string& name) {
    for (const Finding& finding : findings) {
      if (finding.name == name) return finding;
    }
    ADD_FAILURE() << "no finding '" << name << "'";
    return {};
  }
  test::TempDir dir_;
  CheckInputs inputs_;
  const std::string path_ = std::getenv("PATH");
};

TEST_F(DoctorTest, LimitsAndTheirRemedies) {
  Write("proc/self/limits",
        "Max stack size 8388608 unlimited bytes\nMax core file size 0 unlimited bytes\n"
        "Max open files 32 64 files\nMax locked memory 65536 65536 bytes\n");
  std::vector<Finding> findings = CheckLimits(inputs_);
  EXPECT_EQ(Named(findings, "nofile").verdict, Verdict::kFail);
  EXPECT_THAT(Named(findings, "nofile").remedy, HasSubstr("ulimit -n"));
  EXPECT_EQ(Named(findings, "stack").verdict, Verdict::kOk);
  EXPECT_EQ(Named(findings, "core").verdict, Verdict::kOk);
  // There is no InfiniBand, which would need more.
  EXPECT_EQ(Named(findings, "memlock").verdict, Verdict::kOk);
  Write("sys/class/infiniband/mlx5_0/node_guid", "x");
  findings = CheckLimits(inputs_);
  EXPECT_EQ(Named(findings, "memlock").verdict, Verdict::kWarn);
  EXPECT_THAT(Named(findings, "memlock").remedy, HasSubstr("memlock unlimited"));
}

TEST_F(DoctorTest, InfiniBandPorts) {
  EXPECT_THAT(Named(CheckInfiniBand(inputs_), "InfiniBand").text, HasSubstr("none"));
  Write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  Write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  Write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
  Write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  const std::vector<Finding> findings = CheckInfiniBand(inputs_);
  EXPECT_EQ(Named(findings, "mlx5_0").verdict, Verdict::kOk);
  EXPECT_EQ(Named(findings, "mlx5_0").text, "port 1: InfiniBand, 400 Gb/sec (4X NDR), 4: ACTIVE");
  EXPECT_EQ(Named(findings, "mlx5_1").verdict, Verdict::kWarn);
}

TEST_F(DoctorTest, SegmentsOfDeadJobsAreReported) {
  EXPECT_EQ(Named(CheckSharedMemory(inputs_), "dead jobs").verdict, Verdict::kOk);
  Write("shm/vader_segment.host.0.1.0", "dead");
  Write("shm/vader_segment.host.0.2.0", "alive");
  Write("shm/someone_elses_business", "x");
  Write("proc/123/maps",
        "7f-80 rw-s 00 00:1 9 " + (dir_ / "shm/vader_segment.host.0.2.0").string());
  const Finding found = Named(CheckSharedMemory(inputs_), "dead jobs");
  EXPECT_EQ(found.verdict, Verdict::kWarn);
  EXPECT_EQ(found.values.at("segments"), 1);
  EXPECT_EQ(found.remedy, "rm " + (dir_ / "shm/vader_segment.host.0.1.0").string());
}

TEST_F(DoctorTest, SharedMemoryThatIsNotThere) {
  inputs_.shm = dir_ / "none";
  const std::vector<Finding> findings = CheckSharedMemory(inputs_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kFail);
  EXPECT_THAT(findings[0].remedy, HasSubstr("mount -t tmpfs"));
}

TEST_F(DoctorTest, CoresAndTheQuotaOfEveryCgroupAbove) {
  Write("proc/self/status", "Cpus_allowed_list:\t0-7\n");
  Write("proc/cpuinfo", "model name\t: Test CPU\n");
  Write("proc/self/cgroup", "0::/outer/inner\n");
  std::vector<Finding> findings = CheckCpu(inputs_);
  EXPECT_THAT(Named(findings, "cores").text, HasSubstr("8 usable, cgroup limit none"));
  EXPECT_THAT(Named(findings, "kernels").text, HasSubstr(" on Test CPU"));
  Write("sys/fs/cgroup/outer/inner/cpu.max", "400000 100000\n");
  Write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  findings = CheckCpu(inputs_);
  EXPECT_EQ(Named(findings, "cores").verdict, Verdict::kWarn);
  EXPECT_EQ(Named(findings, "cores").values.at("cgroup_limit"), 1.5);
  EXPECT_EQ(Named(findings, "cores").remedy, "export OMP_NUM_THREADS=1");
  Write("proc/self/cgroup", "4:cpu,cpuacct:/box\n");
  Write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Named(CheckCpu(inputs_), "cores").values.at("cgroup_limit"), 3);
}

TEST_F(DoctorTest, AGpuThatTheBuildCannotUse) {
#ifdef HALFLIFE_WITH_CUDA
  GTEST_SKIP() << "a build with CUDA asks CUDA";
#endif
  std::vector<Finding> findings = CheckGpus(inputs_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kOk);  // The absence of a GPU is not a fault.
  EXPECT_THAT(findings[0].text, HasSubstr("none"));
  Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module 580.65.06\n");
  Write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA H200\n");
  findings = CheckGpus(inputs_);
  EXPECT_EQ(Named(findings, "NVIDIA driver").text, "580.65.06");
  EXPECT_EQ(Named(findings, "GPU").verdict, Verdict::kWarn);
  EXPECT_THAT(Named(findings, "GPU").text, HasSubstr("NVIDIA H200"));
  EXPECT_THAT(Named(findings, "GPU").remedy, HasSubstr("cmake --preset cuda"));
}

TEST_F(DoctorTest, SrunWithAndWithoutPmix) {
  WriteProgram("srun", "printf 'MPI plugin types are...\\n\\tcray_shasta\\n\\tnone\\n\\tpmi2\\n'");
  Finding slurm = Named(CheckSlurm(inputs_), "Slurm");
  EXPECT_EQ(slurm.verdict, Verdict::kWarn);
  EXPECT_THAT(slurm.remedy, HasSubstr("mpirun inside the allocation"));
  WriteProgram(
      "srun",
      "printf 'MPI plugin types are...\\n\\tnone\\n\\tpmix\\nspecific pmix plugin versions "
      "available: pmix_v4,pmix_v5\\n'");
  slurm = Named(CheckSlurm(inputs_), "Slurm");
  EXPECT_EQ(slurm.verdict, Verdict::kOk);
  EXPECT_THAT(slurm.text, HasSubstr("pmix, pmix_v4"));
}

TEST_F(DoctorTest, LibrariesSayWhichVersionRuns) {
  EXPECT_EQ(LoadedTorch(), TORCH_VERSION);
  testing::internal::CaptureStderr();
  EXPECT_EQ(LoadedProtobuf(), google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(DoctorTest, AnotherVersionThanWasBuiltWith) {
  const std::string maps = "7f00-7f10 r-xp 00000000 08:01 5    /usr/lib/libprotobuf.so.32.0.12\n";
  const Finding same = JudgeLibrary({"protobuf", "3.21.12", "3.21.12"}, maps);
  EXPECT_EQ(same.verdict, Verdict::kOk);
  EXPECT_EQ(same.text, "3.21.12, /usr/lib/libprotobuf.so.32.0.12");
  const Finding other = JudgeLibrary({"protobuf", "3.21.12", "3.25.1"}, maps);
  EXPECT_EQ(other.verdict, Verdict::kWarn);
  EXPECT_EQ(other.text,
            "3.25.1 is loaded, but the build used 3.21.12, /usr/lib/libprotobuf.so.32.0.12");
  EXPECT_THAT(other.remedy, HasSubstr("build again"));
  EXPECT_EQ(JudgeLibrary({"CLI11", "2.1.2", ""}, maps).text, "2.1.2, compiled in");
  EXPECT_EQ(JudgeLibrary({"zlib", "1.2.13", "1.2.13"}, maps).text, "1.2.13, compiled in");
}

TEST_F(DoctorTest, ALauncherOfAnotherMpi) {
  WriteProgram("mpirun", "echo 'mpirun (Open MPI) 99.1.2'");
  const Finding other = Named(CheckMpirun(inputs_), "mpirun");
  EXPECT_EQ(other.verdict, Verdict::kWarn);
  EXPECT_THAT(other.text, HasSubstr("99.1.2, "));
  EXPECT_THAT(other.remedy, HasSubstr("PATH"));
  WriteProgram("mpirun", "echo no such library; exit 3");
  EXPECT_EQ(Named(CheckMpirun(inputs_), "mpirun").verdict, Verdict::kFail);
  const Finding start = Named(CheckBinding(inputs_), "mpirun -n 2");
  EXPECT_EQ(start.verdict, Verdict::kFail);
  EXPECT_THAT(start.text, HasSubstr("exit code 3: no such library"));
}

TEST_F(DoctorTest, FileSystemOfTheRunFolder) {
  Write("proc/self/mountinfo", "22 1 8:1 / / rw - tmpfs tmpfs rw\n");
  const Finding folder = Named(CheckDisk(inputs_), "run folder");  // runs/ does not exist yet.
  EXPECT_EQ(folder.verdict, Verdict::kWarn);
  EXPECT_THAT(folder.text, HasSubstr("lost after a restart"));
  EXPECT_THAT(folder.text, HasSubstr(std::filesystem::canonical(dir_.path()).string()));
}

TEST_F(DoctorTest, TheDiskTestIsBoundedAndLeavesNothing) {
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(dir_.path()), {});
  };
  const auto before = count();
  const DiskSpeed speed = MeasureDisk(dir_.path(), 3 << 20, 60);
  EXPECT_EQ(speed.bytes, 3u << 20);
  EXPECT_GT(speed.mb_per_s, 0);
  EXPECT_EQ(count(), before);
  EXPECT_HL_ERROR(MeasureDisk("/proc/self", 1 << 20, 1), ExitCode::kEnvironment,
                  "cannot open /proc/self");
  inputs_.measure = true;
  inputs_.run_folder = "/proc/self/runs";
  EXPECT_EQ(Named(CheckDisk(inputs_), "disk test").verdict, Verdict::kFail);
}

TEST_F(DoctorTest, PlacesOfRanks) {
  const std::vector<Finding> good =
      JudgePlaces({{"a", {0, 1}, 1}, {"a", {0, 1}, 1}, {"b", {5}, 1}});
  ASSERT_EQ(good.size(), 2u);
  EXPECT_EQ(good[0].text, "2 on a, each on at least 2 of 2 cores, 2 threads in total");
  EXPECT_EQ(good[0].verdict, Verdict::kOk);
  EXPECT_EQ(good[1].verdict, Verdict::kOk);
  // Both ranks are bound to one core. Then one rank has more threads than cores.
  EXPECT_EQ(JudgePlaces({{"a", {0}, 1}, {"a", {0}, 1}})[0].verdict, Verdict::kWarn);
  EXPECT_EQ(JudgePlaces({{"a", {0}, 2}, {"a", {1, 2, 3}, 1}})[0].verdict, Verdict::kWarn);
}

TEST_F(DoctorTest, ARankOnAGpuNeedsSixCores) {
  const std::vector<int> eleven = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const RankPlace rank = {.host = "a", .cpus = eleven, .threads = 1, .on_gpu = true};
  EXPECT_EQ(JudgePlaces({rank})[0].verdict, Verdict::kOk);
  // Two unbound ranks share eleven cores.
  const Finding shared = JudgePlaces({rank, rank})[0];
  EXPECT_EQ(shared.verdict, Verdict::kFail);
  EXPECT_THAT(shared.text, HasSubstr("5 cores per rank, and a rank on a GPU needs 6"));
  EXPECT_THAT(shared.remedy, HasSubstr("--exclusive --mem=0"));
}

TEST_F(DoctorTest, RanksOnDifferentDevicesAreNamed) {
  EXPECT_THAT(JudgeDevices({"cuda", "cuda"}), IsEmpty());
  const std::vector<Finding> mixed = JudgeDevices({"cuda", "cuda", "cpu"});
  ASSERT_EQ(mixed.size(), 1u);
  EXPECT_EQ(mixed[0].verdict, Verdict::kFail);
  EXPECT_EQ(mixed[0].text, "not possible: rank 0 computes on cuda, rank 2 on cpu");
}

TEST_F(DoctorTest, AllReduceSaysRightAndWrong) {
  std::vector<Finding> findings;
  dist::LocalWorld::Run(3, [&](dist::Communicator& comm) {
    const std::vector<Finding> mine = TestAllReduce(comm, {}, 0.01);
    if (comm.rank() == 0) findings = mine;
    if (comm.rank() != 0) {
      EXPECT_THAT(mine, IsEmpty());
    }
  });
  ASSERT_EQ(findings.size(), 5u);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.name;
    EXPECT_GT(finding.values.at("gb_per_s"), 0) << finding.name;
  }
  // The middle byte of one rank's message has a flipped bit.
  dist::LocalWorld::Run(
      2,
      [&](dist::Communicator& comm) {
        const std::vector<Finding> mine = TestAllReduce(comm, {}, 0.01);
        if (comm.rank() == 0) findings = mine;
      },
      {.faults = {{.kind = dist::LocalFault::Kind::kNan, .rank = 1, .what = "doctor", .nth = 1}}});
  EXPECT_EQ(findings[0].verdict, Verdict::kFail);
  EXPECT_THAT(findings[0].text, HasSubstr("WRONG in 2 elements"));  // One on each rank.
  EXPECT_THAT(findings[0].remedy, HasSubstr("do not train"));
}

TEST_F(DoctorTest, ACheckThatThrowsIsAFailure) {
  const LocalCheck check{"broken", [](const CheckInputs&) -> std::vector<Finding> {
                           HL_FAIL(ExitCode::kEnvironment, "its words");
                         }};
  const Group group = doctor::Run(check, inputs_);
  ASSERT_EQ(group.findings.size(), 1u);
  EXPECT_EQ(group.findings[0].verdict, Verdict::kFail);
  EXPECT_EQ(group.findings[0].text, "its words");
}

TEST_F(DoctorTest, TextAndJsonOfAReport) {
  const Report report{"1.2.3",
                      "abc",
                      "host",
                      1,
                      {{"limits", {{Verdict::kFail, "nofile", "32: few", "ulimit -n 65536"}}},
                       {"disk", {{Verdict::kOk, "disk test", "fine", "", {{"mb_per_s", 5}}}}},
                       {"none", {}}}};
  EXPECT_EQ(ReportText(report),
            "halflife 1.2.3 abc on host, 1 rank\n"
            "\nlimits\nFAIL  nofile           32: few\n      fix: ulimit -n 65536\n"
            "\ndisk\nOK    disk test        fine\n"
            "\n1 OK, 0 WARN, 1 FAIL\n");
  const auto json = ReportJson(report);
  EXPECT_EQ(json["num_fail"], 1);
  EXPECT_EQ(json["findings"][0]["group"], "limits");
  EXPECT_EQ(json["findings"][0]["remedy"], "ulimit -n 65536");
  EXPECT_EQ(json["findings"][1]["values"]["mb_per_s"], 5);
}

}  // namespace
}  // namespace halflife::cli::doctor
