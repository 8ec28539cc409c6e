#include "ort/registry.h"

namespace edge_rt::ort {
namespace {

std::string port_list(const Port* ports, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    if (i > 0) list += ',';
    list += ports[i].name;
    list += ':';
    list += ports[i].type == abi::kUndefined ? "any" : type_name(ports[i].type);
    if (ports[i].arity == abi::kOptional) list += '?';
    if (ports[i].arity == abi::kVariadic) list += '*';
  }
  return list;
}

}  // namespace

std::string signature(const OpShape& shape) {
  return std::string(shape.name) + "(" + port_list(shape.inputs, shape.input_count) + ")->(" +
         port_list(shape.outputs, shape.output_count) + ")";
}

}  // namespace edge_rt::ort
