# GPUs without a GPU: the emulated driver (csrc/tests/emulator/emulated_driver.h), its test, and the provider on it.
if(NOT TARGET edge_rt_gpu_provider)
  return()
endif()

add_library(edge_rt_gpu_emulated OBJECT emulator/emulated_device.cc emulator/emulated_driver.cc
            emulator/emulated_memory.cc emulator/emulated_streams.cc emulator/emulated_work.cc
            emulator/simt.cc)
target_link_libraries(edge_rt_gpu_emulated PUBLIC edge_rt_flags)

add_library(fake_cuda SHARED fake_cuda.cc)
target_link_libraries(fake_cuda PRIVATE edge_rt_flags)
add_executable(gpu_driver_test gpu_driver_main.cc ${gpu_folder}/cuda/driver.cc ${gpu_folder}/cuda/driver_loading.cc)
target_link_libraries(gpu_driver_test PRIVATE edge_rt_gpu_emulated ${CMAKE_DL_LIBS})
add_test(NAME gpu_driver_test COMMAND gpu_driver_test $<TARGET_FILE:fake_cuda>)

add_executable(gpu_pass_test gpu_pass_main.cc fake_ort.cc fake_memory.cc)
target_link_libraries(gpu_pass_test PRIVATE edge_rt_gpu_provider edge_rt_gpu_cuda edge_rt_gpu_emulated edge_rt_base ${CMAKE_DL_LIBS})
add_test(NAME gpu_pass_test COMMAND gpu_pass_test)

add_executable(weights_file_test weights_file_main.cc ${gpu_folder}/weights_file.cc)
target_link_libraries(weights_file_test PRIVATE edge_rt_flags)
add_test(NAME weights_file_test COMMAND weights_file_test)

# The provider with toy operators, whose schemas edge_rt_test_ops has.
set_source_files_properties(gpu_toy_cuda.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
add_library(edge_rt_gpu_toys SHARED ${gpu_folder}/provider.cc ${gpu_folder}/provider_weights.cc emulator/emulated_abi.cc gpu_toy_cuda.cu)
target_link_libraries(edge_rt_gpu_toys PRIVATE edge_rt_gpu_provider edge_rt_gpu_cuda edge_rt_gpu_emulated)
edge_rt_loadable(edge_rt_gpu_toys "${gpu_folder}/exports.map")
target_compile_definitions(edge_rt_gpu_toys PRIVATE EDGE_RT_GPU_OPS_HEADER="tests/gpu_toy_ops.h")

# The provider with its own operators, whose schemas edge_rt_ops has.
set_source_files_properties(${gpu_kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
add_library(edge_rt_gpu_fiber_kernels OBJECT ${gpu_kernel_sources})
target_link_libraries(edge_rt_gpu_fiber_kernels PUBLIC edge_rt_flags)
add_library(edge_rt_gpu_emulation SHARED ${gpu_folder}/provider.cc ${gpu_folder}/provider_weights.cc emulator/emulated_abi.cc)
target_link_libraries(edge_rt_gpu_emulation PRIVATE edge_rt_gpu_provider edge_rt_gpu_cuda edge_rt_gpu_emulated
                                                    edge_rt_gpu_op_objects edge_rt_gpu_fiber_kernels edge_rt_kernels)
edge_rt_loadable(edge_rt_gpu_emulation "${gpu_folder}/exports.map")
