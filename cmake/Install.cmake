# cmake --install BUILD --prefix PREFIX. Only the target `halflife` must have been built.
#
#   PREFIX/bin                halflife and halflife-engine
#   PREFIX/lib/halflife       the module for SentencePiece, which the engine loads on first use
#   PREFIX/share/halflife     launch/ (mpirun and Slurm scripts, recipes, sweeps), docs/, README.md
#   PREFIX/share/...          completion for bash, zsh and fish; a man page for each subcommand if help2man is found
#
# The files find each other by relative paths, so PREFIX can be moved. LibTorch and the other libraries are
# not installed: the engine loads them from the absolute paths of the build.
set(installed_modules lib/halflife)
set(installed_rpath "$ORIGIN/../${installed_modules}")
if(HALFLIFE_WITH_CUDA)
  get_filename_component(nccl_dir ${Nccl_LIBRARY} DIRECTORY)
  list(APPEND installed_rpath ${nccl_dir})
endif()
# INSTALL_RPATH_USE_LINK_PATH adds the folders of libraries outside this repository. FindLibTorch adds its
# own.
set_target_properties(halflife_engine PROPERTIES
  INSTALL_RPATH "${installed_rpath}" INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS halflife halflife_engine RUNTIME DESTINATION bin)
install(TARGETS hl_sentencepiece LIBRARY DESTINATION ${installed_modules})
install(DIRECTORY docs DESTINATION share/halflife)
install(FILES README.md DESTINATION share/halflife)
install(FILES launch/common.sh launch/supervise.sh DESTINATION share/halflife/launch)
install(DIRECTORY launch/mpirun launch/slurm launch/recipes launch/sweeps
  DESTINATION share/halflife/launch USE_SOURCE_PERMISSIONS)

# The installed program generates its completion scripts and man pages.
install(CODE [[
  set(share $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share)
  set(program $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin/halflife)
  foreach(shell_file bash:bash-completion/completions/halflife zsh:zsh/site-functions/_halflife
      fish:fish/vendor_completions.d/halflife.fish)
    string(REPLACE ":" ";" pair ${shell_file})
    list(GET pair 0 shell)
    list(GET pair 1 file)
    execute_process(COMMAND ${program} completion ${shell} OUTPUT_VARIABLE script COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${share}/${file} "${script}")
  endforeach()
  find_program(HELP2MAN help2man)
  if(HELP2MAN)
    file(MAKE_DIRECTORY ${share}/man/man1)
    execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help)
    string(REGEX MATCHALL "\n  [a-z]+ " names "${help}")
    foreach(name "" ${names})
      string(STRIP "${name}" name)
      string(REPLACE " " "-" page "halflife ${name}")
      string(REGEX REPLACE "-$" "" page ${page})
      execute_process(COMMAND ${HELP2MAN} --no-info --version-string=0.1.0 -o ${share}/man/man1/${page}.1
        "${program} ${name}")
    endforeach()
  endif()
]])
