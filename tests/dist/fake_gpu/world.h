// GPUs and NCCL without a GPU: <cuda_runtime.h> and <nccl.h> of this folder, with the ranks as
// threads of one process and a device for each. It runs src/dist as on a cluster, in seconds.
//
//   const fake::Outcome outcome = fake::Run({.ranks = 4, .seed = 7}, [](fake::Rank& rank) {
//     const auto comm = dist::MakeNcclCommunicator(rank.control(), rank.device(), "world", {});
//     comm->Barrier({"met", 0}).WaitHost();
//   });
//
// Device memory is host memory. There are two clocks:
//
// - Real time. A thread executes what is at the heads of the streams, by priority and then by seed,
//   with seeded delays. This finds races and deadlocks. Deadlines count real time.
// - Virtual time, in microseconds. Every kernel, event and host call has a cost, and starts at the
//   latest end of what it waits for. Measures are therefore exact on a busy machine.
//   cudaEventElapsedTime returns virtual time.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/tensor_ref.h"
#include "dist/communicator.h"

namespace halflife::fake {

struct Options {
  int ranks = 2;
  uint64_t seed = 0;
  double max_delay_us = 40;       // real time; of a kernel, and of NCCL's own threads
  size_t launch_queue = 1024;     // entries of a stream; a launch blocks the host when it is full
  bool driver_lock = false;       // a blocked launch also blocks all queries of its device
  int sms = 132;                  // thread blocks that can be resident on a device
  bool launch_order = true;       // NCCL_LAUNCH_ORDER_IMPLICIT
  bool seeded_sums = false;       // the seed decides the order in which NCCL adds fp32 and fp64
  bool same_gpu = false;          // all ranks report the same GPU
  bool unreachable = false;       // no rendezvous ends, as if no rank could reach the root
  double control_timeout_s = 20;  // of Rank::control()
  double give_up_s = 20;          // real time after which the world ends although ranks are stuck
  double collective_us = 10;      // virtual cost of a collective without its bytes
  double bytes_per_us = 100'000;  // of a collective
};

// A kernel or collective that started, in the order of real time.
struct Start {
  int rank = 0;
  std::string name;  // of a collective: its kind and "+ n" for n further ones in the same kernel
  int priority = 0;  // of its stream
  int group = -1;    // of a collective: the number of its communicator, in the order of creation
  double begin_us = 0;
};

class World;

class Rank {
 public:
  int number() const { return number_; }
  Device device() const { return {Device::Kind::kCuda, number_}; }
  dist::Communicator& control() { return control_; }

  cudaStream_t Stream(int priority = 0);  // non-blocking; lives as long as the world
  // Queues a kernel that takes `us` of virtual time and up to `sms` thread blocks. `body` runs when
  // the kernel ends, and must not call CUDA.
  void Compute(cudaStream_t stream, double us, const std::function<void()>& body = {},
               int sms = 132);
  void ComputeForever(cudaStream_t stream);
  // Queues a kernel that ends once `released` is true.
  void ComputeUntil(cudaStream_t stream, const std::atomic<bool>& released, int sms = 132);
  void Synchronize(cudaStream_t stream);

  double host_us() const;     // virtual time of this thread
  int group_calls() const;    // of NCCL, by this rank
  int live_groups() const;    // NCCL communicators of this rank
  [[noreturn]] void Hang();   // until the world ends
  [[noreturn]] void Die();    // like a killed process: its GPU executes nothing any more
  void FailAsynchronously();  // NCCL reports a lost peer on this rank, in all groups

 private:
  friend struct Runner;
  Rank(World& world, int number, dist::Communicator& control)
      : world_(world), number_(number), control_(control) {}
  World& world_;
  const int number_;
  dist::Communicator& control_;
};

// For Communicator::SumInOrder: a kernel of this rank that adds the parts.
dist::OrderedSum OrderedSumOf(Rank& rank);

struct Outcome {
  bool gave_up = false;            // ranks were still stuck after give_up_s
  std::exception_ptr error = {};   // the first error of a rank
  std::string error_text = {};     // empty: none
  std::vector<Start> starts = {};  // of all ranks
  int double_joins = 0;            // two threads polled one communicator at the same time
  int unlike = 0;                  // collectives whose ranks issued different requests
  double wall_s = 0;
};

// Runs `body` on one thread per rank. The first error of a rank ends the world: calls that block
// then return an error, as the end of a process ends them in reality.
Outcome Run(const Options& options, const std::function<void(Rank&)>& body);

// Ends the world, as a watchdog does that calls _exit. May be called from any thread.
void EndWorld();

}  // namespace halflife::fake
