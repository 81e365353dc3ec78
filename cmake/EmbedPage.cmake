# cmake -D IN=page.html -D OUT=page.cc -P EmbedPage.cmake: the file's bytes as the function Page() of status_port.cc.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include <string>\n\nnamespace railsd {\nnamespace {\n\nconst unsigned char kPage[] = {\n${bytes}\n};\n\n}  // namespace\n\nstd::string Page() { return std::string(kPage, kPage + sizeof(kPage)); }\n\n}  // namespace railsd\n")
