# Float operations of Vulkan kernels: vulkan_float_test <folder of tools/spirv.py>. It needs a device: no test of a build.
if(NOT TARGET gpu_test_parts)
  return()
endif()
add_gpu_program(vulkan_float_test vulkan_float_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc
                ${simd_test_isa_objects})
target_link_libraries(vulkan_float_test PRIVATE edge_rt_gpu_vulkan ${CMAKE_DL_LIBS})
