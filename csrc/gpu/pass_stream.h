// The passes of a session, which run one after the other on a queue of its own; and the recordings of them.
//
// A pass is recorded under a number that its caller chose, such as its count of rows, and replayed under it as long as
// its tensors lie where they did. The first pass of a number runs as it is, which takes the memory and loads the
// kernels that it needs; the second one is recorded.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/launcher.h"
#include "gpu/memory_pool.h"
#include "gpu/pass_inputs.h"

namespace edge_rt::gpu {

constexpr int kNoGraph = -1;  // the number of a pass that is not recorded

class PassStream : public Launcher {
 public:
  // `arena`: of its passes' memory; nullptr: one of its own.
  static std::unique_ptr<PassStream> open(std::shared_ptr<GpuDevice> device, std::shared_ptr<PassArena> arena,
                                          GpuError* error);
  ~PassStream() override;
  PassStream(const PassStream&) = delete;
  PassStream& operator=(const PassStream&) = delete;

  MemoryPool& memory() { return memory_; }
  PassInputs& inputs() { return inputs_; }
  GpuDevice& device() { return *device_; }

  bool begin_pass(int graph, GpuError* error);
  // Waits for the pass. One that has failed is not recorded.
  bool end_pass(bool has_failed, GpuError* error);

  Traits traits() const override { return device_->traits(); }
  using Launcher::launch;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override;
  // Copies host memory, which must stay as it is until the pass ends, to the device behind all that was started before.
  // A recorded pass reads it again, at the same address, when it is replayed.
  bool upload(void* to, const void* from, size_t bytes);
  // Called before a recorded pass is replayed, to check what the host has written for the operator `op`; gives what is
  // wrong with it, and then the pass is not replayed. Empty: nothing.
  using Check = std::function<std::string()>;
  void check_replays(const char* op, Check check);
  // The first error of launches and uploads, and of what else takes part in them, which is then forgotten.
  void keep_error(GpuError error);
  GpuError take_error();

  // Whether the running pass has a number: what it started may run again, with other numbers of the host.
  bool is_recorded() const { return number_ != kNoGraph; }
  bool has_graph(int graph) const;
  bool replay(int graph, GpuError* error);
  void forget_graph(int graph);

 private:
  struct CheckOf {
    const char* op;
    Check check;
  };
  struct Recorded {
    std::unique_ptr<Recording> recording;
    std::vector<CheckOf> checks;
    int generation;  // of the memory that it uses
  };

  PassStream(std::shared_ptr<GpuDevice> device, std::shared_ptr<PassArena> arena)
      : device_(device), memory_(std::move(device), std::move(arena)) {}

  const std::shared_ptr<GpuDevice> device_;
  MemoryPool memory_;
  PassInputs inputs_{this};
  std::unique_ptr<GpuQueue> queue_;
  GpuError error_;
  int number_ = kNoGraph;  // of the running pass
  bool is_running_ = false, is_recording_ = false;
  std::vector<CheckOf> checks_;  // of the running pass, if it is recorded
  std::set<int> has_run_;        // numbers of passes that ran as they are
  std::map<int, Recorded> recorded_;
};

}  // namespace edge_rt::gpu
