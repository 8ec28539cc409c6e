# GPUs by way of Vulkan. The loader is looked for where the library runs.
add_library(edge_rt_gpu_vulkan OBJECT ${gpu_folder}/vulkan/backend.cc ${gpu_folder}/vulkan/self_test.cc
                                      ${gpu_folder}/vulkan/spirv.cc ${gpu_folder}/vulkan/vulkan_commands.cc
                                      ${gpu_folder}/vulkan/vulkan_device.cc ${gpu_folder}/vulkan/vulkan_import.cc
                                      ${gpu_folder}/vulkan/vulkan_instance.cc ${gpu_folder}/vulkan/vulkan_link.cc
                                      ${gpu_folder}/vulkan/vulkan_memory.cc ${gpu_folder}/vulkan/vulkan_pipelines.cc
                                      ${gpu_folder}/vulkan/vulkan_queue.cc)
target_link_libraries(edge_rt_gpu_vulkan PUBLIC edge_rt_flags)
edge_rt_gpu_library(edge_rt_vulkan edge_rt_gpu_vulkan)

# Kernels were compiled by tools/spirv.py: nothing is on the machine that builds or runs this.
file(GLOB vulkan_kernels CONFIGURE_DEPENDS csrc/gpu/vulkan/spirv/*.spv csrc/ops/*/vulkan/spirv/*.spv)
install(FILES ${vulkan_kernels} DESTINATION edge_rt/native/vulkan)
