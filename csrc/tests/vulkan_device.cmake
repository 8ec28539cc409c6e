# The Vulkan backend by itself; what is not there on this machine is skipped.
if(NOT TARGET edge_rt_gpu_vulkan)
  return()
endif()
add_executable(vulkan_abi_test vulkan_abi_main.cc)
target_link_libraries(vulkan_abi_test PRIVATE edge_rt_flags)
add_test(NAME vulkan_abi_test COMMAND vulkan_abi_test)
add_executable(vulkan_device_test vulkan_device_main.cc)
target_link_libraries(vulkan_device_test PRIVATE edge_rt_gpu_vulkan edge_rt_base ${CMAKE_DL_LIBS})
add_test(NAME vulkan_device_test COMMAND vulkan_device_test "${PROJECT_SOURCE_DIR}/csrc/ops/copy_rows/vulkan/spirv"
                                         "${PROJECT_SOURCE_DIR}/csrc/gpu/vulkan/spirv")
set_tests_properties(vulkan_abi_test vulkan_device_test PROPERTIES SKIP_RETURN_CODE 77)
# With one kernel: to compile them all takes long on a software device.
add_executable(vulkan_pipelines_test vulkan_pipelines_main.cc)
target_link_libraries(vulkan_pipelines_test PRIVATE edge_rt_gpu_vulkan edge_rt_base ${CMAKE_DL_LIBS})
add_test(NAME vulkan_pipelines_test COMMAND vulkan_pipelines_test "${PROJECT_SOURCE_DIR}/csrc/ops/copy_rows/vulkan/spirv")
set_tests_properties(vulkan_pipelines_test PROPERTIES SKIP_RETURN_CODE 77)
add_executable(vulkan_compile vulkan_compile_main.cc)
target_link_libraries(vulkan_compile PRIVATE edge_rt_gpu_vulkan edge_rt_base ${CMAKE_DL_LIBS})
