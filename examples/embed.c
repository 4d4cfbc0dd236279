/* embed.c - writes a file as C source, so that chat carries its default model: embed MODEL OUT */
#include <stdio.h>

int main(int argc, char **argv)
{
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
    FILE *out = in ? fopen(argv[2], "w") : NULL;
    unsigned long size = 0;
    int c;

    if (argc != 3) return fputs("usage: embed MODEL OUT\n", stderr), 2;
    if (!in || !out) return perror(in ? argv[2] : argv[1]), 1;

    /* One string literal: compilers read it many times faster than a list of numbers. */
    fputs("#include <stdint.h>\nextern const unsigned char chat_model[];\nextern const uint64_t chat_model_size;\n"
          "const unsigned char chat_model[] = \"", out);
    for (; (c = getc(in)) != EOF; size++) fprintf(out, "%s\\%03o", size % 32 == 0 ? "\"\n\"" : "", (unsigned)c);
    fprintf(out, "\";\nconst uint64_t chat_model_size = %luu;\n", size);

    if (ferror(in) || ferror(out) || fclose(out)) return perror(argv[2]), 1;
    fclose(in);
    return 0;
}
