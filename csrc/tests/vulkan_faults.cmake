# A Vulkan layer that injects faults (vulkan_faults/), with its manifest in a folder of its own, for the loader.
if(NOT TARGET edge_rt_gpu_provider OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  return()
endif()
set(layer edge_rt_vulkan_faults)
add_library(${layer} SHARED vulkan_faults/devices.cc vulkan_faults/disguise.cc vulkan_faults/faults.cc
                            vulkan_faults/guises.cc vulkan_faults/layer.cc
                            vulkan_faults/objects.cc vulkan_faults/owners.cc vulkan_faults/work.cc)
target_link_libraries(${layer} PRIVATE edge_rt_flags)
set_target_properties(${layer} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/vulkan_layers")
configure_file(vulkan_faults/manifest.json.in vulkan_layers/edge_rt_faults.json @ONLY)

# The backend on a device that fails; .ci/vulkan runs it, where there is such a device.
add_executable(vulkan_fault_test vulkan_fault_main.cc)
target_link_libraries(vulkan_fault_test PRIVATE edge_rt_gpu_vulkan edge_rt_base ${CMAKE_DL_LIBS})
