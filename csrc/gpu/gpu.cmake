# The execution provider for GPUs, a library of its own for each kind of driver: ONNX Runtime loads it, and it looks for
# the driver where it runs.
set(gpu_folder "${PROJECT_SOURCE_DIR}/csrc/gpu")

# What does not depend on which driver it is: the provider without operators.
add_library(edge_rt_gpu_provider OBJECT
            ${gpu_folder}/kept_gpus.cc ${gpu_folder}/memory_pool.cc ${gpu_folder}/pass_arena.cc
            ${gpu_folder}/pass_inputs.cc ${gpu_folder}/pass_stream.cc
            ${gpu_folder}/provider_api.cc ${gpu_folder}/provider_factory.cc ${gpu_folder}/provider_kernels.cc
            ${gpu_folder}/provider_memory.cc ${gpu_folder}/provider_session.cc ${gpu_folder}/weights_file.cc)
target_link_libraries(edge_rt_gpu_provider PUBLIC edge_rt_flags)

# Its operators, which check what they are given with the code of the CPU's.
file(GLOB gpu_op_sources CONFIGURE_DEPENDS csrc/ops/*/*_gpu.cc csrc/ops/*/*_gpu_op.cc)
file(GLOB gpu_kernel_sources CONFIGURE_DEPENDS csrc/ops/*/*_cuda.cu)
add_library(edge_rt_gpu_op_objects OBJECT ${gpu_op_sources})
target_link_libraries(edge_rt_gpu_op_objects PUBLIC edge_rt_flags)

# A library of the provider, with the objects that fill gpu_device.h for one kind of driver.
function(edge_rt_gpu_library name)
  add_library(${name} SHARED ${gpu_folder}/provider.cc ${gpu_folder}/provider_weights.cc)
  target_link_libraries(${name} PRIVATE edge_rt_gpu_provider edge_rt_gpu_op_objects ${ARGN} edge_rt_kernels
                                        ${CMAKE_DL_LIBS})
  edge_rt_loadable(${name} "${gpu_folder}/exports.map")
  install(TARGETS ${name} LIBRARY DESTINATION edge_rt/native)
endfunction()

# NVIDIA's GPUs. The driver is in objects of its own, because tests have an emulated one. Kernels are compiled on the
# machine that runs them, from the sources installed here.
add_library(edge_rt_gpu_cuda OBJECT ${gpu_folder}/cuda/backend.cc ${gpu_folder}/cuda/cuda_device.cc
                                    ${gpu_folder}/cuda/cuda_queue.cc ${gpu_folder}/cuda/driver.cc)
target_link_libraries(edge_rt_gpu_cuda PUBLIC edge_rt_flags)
add_library(edge_rt_gpu_cuda_driver OBJECT ${gpu_folder}/cuda/driver_library.cc ${gpu_folder}/cuda/driver_loading.cc)
target_link_libraries(edge_rt_gpu_cuda_driver PUBLIC edge_rt_flags)
edge_rt_gpu_library(edge_rt_gpu edge_rt_gpu_cuda edge_rt_gpu_cuda_driver)
install(DIRECTORY csrc/ DESTINATION edge_rt/native/cuda
        FILES_MATCHING REGEX "/(common|ops|kernels|gpu)/.*\\.(cu|h|inl)$" REGEX "/gpu/cuda/rtc/[a-z_]+$"
        PATTERN "tests" EXCLUDE PATTERN "draft" EXCLUDE PATTERN "ort" EXCLUDE)
