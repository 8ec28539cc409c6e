# The execution provider for NVIDIA GPUs, a library of its own: ONNX Runtime loads it, and it takes the driver out of
# libcuda.so.1 where there is one. Kernels are compiled on the machine that runs them, from the sources installed here.
set(gpu_folder "${PROJECT_SOURCE_DIR}/csrc/gpu")

# What does not depend on which driver it is: the provider without operators.
add_library(edge_rt_gpu_provider OBJECT ${gpu_folder}/driver.cc ${gpu_folder}/gpu_context.cc ${gpu_folder}/memory_pool.cc
            ${gpu_folder}/pass_inputs.cc ${gpu_folder}/pass_stream.cc ${gpu_folder}/provider_api.cc
            ${gpu_folder}/provider_factory.cc ${gpu_folder}/provider_kernels.cc ${gpu_folder}/provider_memory.cc
            ${gpu_folder}/provider_session.cc)
target_link_libraries(edge_rt_gpu_provider PUBLIC edge_rt_flags)

# Its operators, which check what they are given with the code of the CPU's.
file(GLOB gpu_op_sources CONFIGURE_DEPENDS csrc/ops/*/*_gpu.cc csrc/ops/*/*_gpu_op.cc)
file(GLOB gpu_kernel_sources CONFIGURE_DEPENDS csrc/ops/*/*_cuda.cu)
add_library(edge_rt_gpu_op_objects OBJECT ${gpu_op_sources})
target_link_libraries(edge_rt_gpu_op_objects PUBLIC edge_rt_flags)

add_library(edge_rt_gpu SHARED ${gpu_folder}/provider.cc ${gpu_folder}/driver_library.cc ${gpu_folder}/driver_loading.cc)
target_link_libraries(edge_rt_gpu PRIVATE edge_rt_gpu_provider edge_rt_gpu_op_objects edge_rt_kernels ${CMAKE_DL_LIBS})
edge_rt_loadable(edge_rt_gpu "${gpu_folder}/exports.map")
install(TARGETS edge_rt_gpu LIBRARY DESTINATION edge_rt/native)
install(DIRECTORY csrc/ DESTINATION edge_rt/native/cuda
        FILES_MATCHING REGEX "/(ops|kernels|gpu)/.*\\.(cu|h|inl)$" REGEX "/gpu/rtc/[a-z_]+$"
        PATTERN "tests" EXCLUDE PATTERN "draft" EXCLUDE PATTERN "ort" EXCLUDE PATTERN "common" EXCLUDE)
