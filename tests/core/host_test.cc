// The memory limit of this process is read correctly from /proc and cgroups.
#include "core/host.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"

namespace halflife {
namespace {

namespace fs = std::filesystem;

class HostMemory : public testing::Test {
 protected:
  HostMemory() {
    Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\nSwapTotal:     24 kB\n");
  }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  uint64_t Bytes() const { return HostMemoryBytes(dir_ / "proc", dir_ / "cgroup"); }
  const test::TempDir dir_;
};

TEST_F(HostMemory, IsMemoryAndSwap) {
  EXPECT_EQ(Bytes(), 1024u * 1024);
  EXPECT_GT(HostMemoryBytes(), 1u << 20) << "this machine";
  EXPECT_EQ(HostMemoryBytes(dir_ / "none", dir_ / "none"), 0u);
}

TEST_F(HostMemory, IsTheLeastLimitOfTheCgroupsAbove) {
  Write("proc/self/cgroup", "0::/job/step\n");
  Write("cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(Bytes(), 1024u * 1024);
  Write("cgroup/job/memory.max", "4096\n");
  EXPECT_EQ(Bytes(), 4096u);
  Write("cgroup/memory.max", "512\n");
  EXPECT_EQ(Bytes(), 512u);
}

TEST_F(HostMemory, ReadsTheFirstVersionOfCgroupsToo) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n");
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Bytes(), 1024u * 1024);
  Write("cgroup/memory/docker/memory.limit_in_bytes", "8192\n");
  EXPECT_EQ(Bytes(), 8192u);
}

}  // namespace
}  // namespace halflife
