// The stream of a session, on which its passes run one after the other; and the graphs that were recorded of them.
//
// A pass is recorded under a number that its caller chose, such as its count of rows, and replayed under it as long as
// its tensors lie where they did. The first pass of a number runs as it is, which takes the memory and loads the
// kernels that it needs; the second one is recorded.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "gpu/gpu_context.h"
#include "gpu/launcher.h"
#include "gpu/memory_pool.h"
#include "gpu/pass_inputs.h"

namespace edge_rt::gpu {

constexpr int kNoGraph = -1;  // the number of a pass that is not recorded

class PassStream : public Launcher {
 public:
  static std::unique_ptr<PassStream> open(std::shared_ptr<GpuContext> context, DriverError* error);
  ~PassStream() override;
  PassStream(const PassStream&) = delete;
  PassStream& operator=(const PassStream&) = delete;

  MemoryPool& memory() { return memory_; }
  PassInputs& inputs() { return inputs_; }
  GpuContext& context() { return *context_; }

  bool begin_pass(int graph, DriverError* error);
  // Waits for the pass. One that has failed is not recorded.
  bool end_pass(bool has_failed, DriverError* error);

  using Launcher::launch;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override;
  // Copies host memory, which must stay as it is until the pass ends, to the device behind all that was started before.
  // A recorded pass reads it again, at the same address, when it is replayed.
  bool upload(void* to, const void* from, size_t bytes);
  // Called before a recorded pass is replayed, to check what the host has written; false: it is not replayed, and the
  // function has put the reason into the error.
  using Check = std::function<bool(DriverError*)>;
  void check_replays(Check check);
  // The first error of launches and uploads, and of what else takes part in them, which is then forgotten.
  void keep_error(DriverError error);
  DriverError take_error();

  // Whether the running pass has a number: what it started may run again, with other numbers of the host.
  bool is_recorded() const { return number_ != kNoGraph; }
  bool has_graph(int graph) const { return graphs_.count(graph) != 0; }
  bool replay(int graph, DriverError* error);
  void forget_graph(int graph);

 private:
  // A graph copies from pinned memory, which is filled before it is replayed.
  struct Upload {
    void* pinned;
    const void* from;
    size_t bytes;
  };
  struct Graph {
    CUgraphExec ready = nullptr;
    std::vector<Upload> uploads;
    std::vector<Check> checks;
  };

  explicit PassStream(std::shared_ptr<GpuContext> context) : context_(context), memory_(std::move(context)) {}
  bool record(CUgraph captured, DriverError* error);
  void drop_uploads(std::vector<Upload>* uploads);
  void drop(Graph* graph);

  const std::shared_ptr<GpuContext> context_;
  MemoryPool memory_;
  PassInputs inputs_{this};
  CUstream stream_ = nullptr;
  DriverError error_;
  int number_ = kNoGraph;  // of the running pass
  bool is_capturing_ = false;
  Graph pass_;                   // what the running pass needs if it is recorded
  std::map<int, bool> has_run_;  // numbers of passes that ran as they are
  std::map<int, Graph> graphs_;
};

}  // namespace edge_rt::gpu
