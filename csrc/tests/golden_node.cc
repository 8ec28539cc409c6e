#include "tests/golden_node.h"

#include <cstring>

#include "common/crew.h"
#include "tests/check.h"

extern "C" edge_rt::abi::Status* RegisterCustomOps(edge_rt::abi::SessionOptions* options,
                                                   const edge_rt::abi::ApiBase* base);

namespace edge_rt::golden {
namespace {

constexpr size_t kBoundary = 64;

const abi::OpRecord& find(const std::string& op) {
  const auto records =
      fake::register_ops([](auto* options) { return RegisterCustomOps(options, fake::newest_release()); });
  for (const abi::OpRecord* record : records) {
    if (op == record->name(record)) return *record;
  }
  std::fprintf(stderr, "%s is not registered\n", op.c_str());
  std::exit(1);
}

void must_work(abi::Status* status) {
  if (status != nullptr) std::fprintf(stderr, "%s\n", fake::take_message(status).c_str());
  CHECK(status == nullptr);
}

std::unique_ptr<fake::Tensor> copy_of(const Tensor& tensor, fake::Fault* fault) {
  if (tensor.data == nullptr) return nullptr;
  size_t bytes = fake::element_size(tensor.type);
  for (const int64_t dim : tensor.dims) bytes *= static_cast<size_t>(dim);
  auto memory = std::make_unique<fake::Memory>(bytes, kBoundary, fake::Place::kHeap);
  std::memcpy(memory->data(), tensor.data, bytes);
  return std::make_unique<fake::Tensor>(fake::Tensor{tensor.type, tensor.dims, std::move(memory), fault});
}

// A run of a node, all of its memory included.
fake::Run run_once(const abi::OpRecord& record, const std::vector<fake::Attribute>& attributes,
                   const std::vector<Tensor>& inputs, const std::vector<int>& outputs, int threads, fake::Fault* none) {
  fake::Allocator allocator{none, 0xff};
  fake::Node node{attributes, &allocator};
  void* kernel = nullptr;
  must_work(record.create2(&record, nullptr, reinterpret_cast<const abi::KernelInfo*>(&node), &kernel));
  fake::Run run{{}, {}, none, 0xff, fake::Place::kHeap};
  process_crew().resize(threads);
  for (const Tensor& input : inputs) run.inputs.push_back(copy_of(input, none));
  for (const int type : outputs) {
    run.outputs.push_back(std::make_unique<fake::Tensor>(fake::Tensor{type, {}, nullptr, none}));
  }
  must_work(record.compute2(kernel, reinterpret_cast<abi::KernelContext*>(&run)));
  record.destroy(kernel);
  return run;
}

}  // namespace

std::vector<std::vector<uint8_t>> run_record(const abi::OpRecord& record,
                                             const std::vector<fake::Attribute>& attributes,
                                             const std::vector<Tensor>& inputs, const std::vector<int>& outputs,
                                             int threads) {
  fake::Fault none;
  const fake::Run run = run_once(record, attributes, inputs, outputs, threads, &none);
  std::vector<std::vector<uint8_t>> results;
  for (const auto& output : run.outputs) {
    const fake::Memory& memory = *output->memory;
    results.emplace_back(memory.data(), memory.data() + memory.size());
  }
  return results;
}

std::vector<std::vector<uint8_t>> run_node(const std::string& op, const std::vector<fake::Attribute>& attributes,
                                           const std::vector<Tensor>& inputs, const std::vector<int>& outputs,
                                           int threads) {
  return run_record(find(op), attributes, inputs, outputs, threads);
}

std::vector<float> run_node(const std::string& op, const std::vector<fake::Attribute>& attributes,
                            const std::vector<Tensor>& inputs, size_t in_place, int threads) {
  fake::Fault none;
  const fake::Run run = run_once(find(op), attributes, inputs, {abi::kFloat}, threads, &none);
  const fake::Memory& written = *run.inputs[in_place]->memory;
  std::memcpy(inputs[in_place].data, written.data(), written.size());
  const fake::Memory& y = *run.outputs[0]->memory;
  std::vector<float> result(y.size() / sizeof(float));
  std::memcpy(result.data(), y.data(), y.size());
  return result;
}

}  // namespace edge_rt::golden
