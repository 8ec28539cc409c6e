# GPUs by way of Vulkan. The loader is looked for where the library runs.
set(vulkan_sources backend pipeline_file self_test spirv vulkan_commands
                   vulkan_device vulkan_import vulkan_instance vulkan_link vulkan_memory
                   vulkan_pipelines vulkan_queue)
list(TRANSFORM vulkan_sources PREPEND "${gpu_folder}/vulkan/")
list(TRANSFORM vulkan_sources APPEND ".cc")
add_library(edge_rt_gpu_vulkan OBJECT ${vulkan_sources})
target_link_libraries(edge_rt_gpu_vulkan PUBLIC edge_rt_flags)
edge_rt_gpu_library(edge_rt_vulkan edge_rt_gpu_vulkan)

# Kernels were compiled by tools/spirv.py: nothing is on the machine that builds or runs this.
file(GLOB vulkan_kernels CONFIGURE_DEPENDS csrc/gpu/vulkan/spirv/*.spv csrc/ops/*/vulkan/spirv/*.spv)
install(FILES ${vulkan_kernels} DESTINATION edge_rt/native/vulkan)
