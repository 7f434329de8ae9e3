// The parsers of system files.
#include "cli/doctor/system_files.h"

#include <gtest/gtest.h>

#include <utility>

namespace halflife::cli::doctor {
namespace {

TEST(SystemFiles, Limits) {
  const std::string limits =
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max open files            1024                 1048576              files     \n"
      "Max locked memory         unlimited            unlimited            bytes     \n";
  EXPECT_EQ(ParseLimit(limits, "Max open files"), 1024u);
  EXPECT_EQ(ParseLimit(limits, "Max locked memory"), kUnlimited);
  EXPECT_EQ(ParseLimit(limits, "Max nonsense"), std::nullopt);
  EXPECT_EQ(ParseLimit("Max open files   many", "Max open files"), std::nullopt);
  EXPECT_EQ(ParseLimit("Max open files", "Max open files"), std::nullopt);
}

TEST(SystemFiles, Fields) {
  const std::string status = "Name:\thalflife\nCpus_allowed_list:\t0-1\nmodel name\t: A CPU\n";
  EXPECT_EQ(ParseField(status, "Cpus_allowed_list"), "0-1");
  EXPECT_EQ(ParseField(status, "model name"), "A CPU");
  EXPECT_EQ(ParseField(status, "Name of none"), "");
}

TEST(SystemFiles, CpuLists) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11\n").size(), 7u);
  EXPECT_EQ(ParseCpuList("0-1,5"), (std::vector<int>{0, 1, 5}));
  EXPECT_EQ(ParseCpuList("x,2,-4,7-"), (std::vector<int>{2}));
  EXPECT_EQ(ParseCpuList("0-99999999999"), (std::vector<int>{}));
  EXPECT_EQ(ParseCpuList("0-2000000000"), (std::vector<int>{}));
  EXPECT_EQ(ParseCpuList(""), (std::vector<int>{}));
}

TEST(SystemFiles, CgroupQuotas) {
  EXPECT_EQ(ParseCpuMax("250000 100000\n"), 2.5);
  EXPECT_EQ(ParseCpuMax("max 100000\n"), std::nullopt);
  EXPECT_EQ(ParseCpuMax("-1 100000"), std::nullopt);  // cgroup v1: no quota.
  EXPECT_EQ(ParseCpuMax("100000 0"), std::nullopt);
  EXPECT_EQ(ParseCpuMax(""), std::nullopt);
  const std::string cgroup = "3:cpu,cpuacct:/box\n0::/user.slice/x\n";
  EXPECT_EQ(ParseCgroupPath(cgroup, ""), "/user.slice/x");
  EXPECT_EQ(ParseCgroupPath(cgroup, "cpu"), "/box");
  EXPECT_EQ(ParseCgroupPath(cgroup, "memory"), "");
}

TEST(SystemFiles, MountsAreTheDeepestAndTheLast) {
  const std::string mounts =
      "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "30 22 0:30 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw,flock\n"
      "31 22 0:31 / /with\\040space ro - nfs4 server:/x ro,vers=4.2\n"
      "32 22 0:32 / /scratch/tmp rw - tmpfs tmpfs rw\n"
      "33 22 0:33 / /scratch/tmp rw - xfs /dev/sdb rw\n"
      "half a line\n";
  EXPECT_EQ(FindMount(mounts, "/home/a")->type, "ext4");
  EXPECT_EQ(FindMount(mounts, "/scratch")->type, "lustre");
  EXPECT_EQ(FindMount(mounts, "/scratch/run")->options, "rw,rw,flock");
  EXPECT_EQ(FindMount(mounts, "/scratchy")->type, "ext4");
  EXPECT_EQ(FindMount(mounts, "/scratch/tmp/x")->type, "xfs");
  EXPECT_EQ(FindMount(mounts, "/with space/x")->type, "nfs4");
  EXPECT_FALSE(FindMount("", "/x"));
}

TEST(SystemFiles, MappedLibraries) {
  const std::string maps =
      "7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libmpi.so.40.30.4\n"
      "7f02-7f03 rw-p 00000000 00:00 0    [heap]\n"
      "7f04-7f05 r-xp 00000000 08:01 13   /opt/my libs/libhdf5_serial.so.103\n";
  EXPECT_EQ(FindMapped(maps, "libmpi.so"), "/usr/lib/libmpi.so.40.30.4");
  EXPECT_EQ(FindMapped(maps, "libhdf5"), "/opt/my libs/libhdf5_serial.so.103");
  EXPECT_EQ(FindMapped(maps, "libnccl"), "");
}

TEST(SystemFiles, Bindings) {
  EXPECT_EQ(ParseBinding("[vm:1] MCW rank 1 bound to socket 0[core 1[hwt 0]]: [./B]\n"
                         "[vm:1] MCW rank 0 bound to socket 0[core 0[hwt 0]]: [B/.]\n"),
            "socket 0[core 0[hwt 0]]");
  EXPECT_EQ(ParseBinding("[vm:1] MCW rank 0 is not bound (or bound to all available)\n"), "");
  EXPECT_EQ(ParseBinding("hello"), std::nullopt);
}

TEST(SystemFiles, Versions) {
  EXPECT_EQ(ParseVersion("mpirun (Open MPI) 4.1.4\n\nReport bugs to 1.2"), "4.1.4");
  EXPECT_EQ(ParseVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06"), "580.65.06");
  EXPECT_EQ(ParseVersion("none 4"), "");
}

TEST(SystemFiles, ArchitecturesAndGpus) {
  const char* const built = "80-real,90a-real,100";
  EXPECT_TRUE(CoversGpu(built, 8, 0));
  EXPECT_TRUE(CoversGpu(built, 8, 6));  // A later minor version runs the binary.
  EXPECT_TRUE(CoversGpu(built, 9, 0));
  EXPECT_TRUE(CoversGpu(built, 10, 3));
  EXPECT_FALSE(CoversGpu(built, 7, 5));
  EXPECT_TRUE(CoversGpu(built, 12, 0));  // From the PTX of 10.0.
  EXPECT_FALSE(CoversGpu("80-real,90a-real,100-real", 12, 0));
  EXPECT_FALSE(CoversGpu("86-real", 8, 0));
  EXPECT_FALSE(CoversGpu("90a", 10, 0));  // Its PTX is only for 9.0.
  EXPECT_TRUE(CoversGpu("80", 12, 0));    // From the PTX of 8.0, compiled when loaded.
  EXPECT_TRUE(CoversGpu("80-virtual", 9, 0));
  EXPECT_FALSE(CoversGpu("", 8, 0));
  for (const char* const word : {"native", "all", "all-major"}) EXPECT_TRUE(CoversGpu(word, 8, 0));
}

// Only code for 9.0a has Hopper's own instructions, and the preset builds for 9.0a.
TEST(SystemFiles, TheProposedArchitectureCoversTheGpu) {
  EXPECT_EQ(ArchitectureFor(9, 0), "90a-real");
  EXPECT_EQ(ArchitectureFor(8, 6), "86-real");
  EXPECT_EQ(ArchitectureFor(12, 0), "120-real");
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 3}, {12, 1}})
    EXPECT_TRUE(CoversGpu(ArchitectureFor(major, minor), major, minor)) << major << "." << minor;
}

TEST(SystemFiles, WhyAGpuCannotRunTheKernels) {
  const char* const built = "80-real,90a-real,100";
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {9, 0}, {12, 1}})
    EXPECT_FALSE(FindGpuProblem(built, major, minor)) << major << "." << minor;
  const auto other = FindGpuProblem("90a-real", 8, 0), old = FindGpuProblem(built, 7, 5);
  ASSERT_TRUE(other && old);
  EXPECT_EQ(other->text, "this build supports only 90a-real");
  EXPECT_EQ(other->remedy,
            "cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=80-real && cmake --build --preset cuda "
            "--target halflife");
  // The kernels do not compile for it, so no build would help.
  EXPECT_EQ(old->text, "halflife needs compute capability 8.0 or higher");
  EXPECT_EQ(old->remedy.find("cmake"), std::string::npos) << old->remedy;
  EXPECT_TRUE(FindGpuProblem("75-real", 7, 5));
}

}  // namespace
}  // namespace halflife::cli::doctor
