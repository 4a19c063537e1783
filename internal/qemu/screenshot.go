package qemu

import (
	"bufio"
	"context"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
)

// Screenshot writes what the guest's screen shows to a PNG file.
func (vm *VM) Screenshot(ctx context.Context, path string) error {
	// QEMU writes PNG itself only where it was built with libpng, PPM always.
	ppm := filepath.Join(vm.Dir, "screen.ppm")
	defer os.Remove(ppm)
	if err := vm.QMP.Run(ctx, "screendump", map[string]string{"filename": ppm}, nil); err != nil {
		return fmt.Errorf("machine %s: screenshot: %w", vm.Name, err)
	}
	in, err := os.Open(ppm)
	if err != nil {
		return fmt.Errorf("machine %s: screenshot: %w", vm.Name, err)
	}
	defer in.Close()
	img, err := readPPM(in)
	if err != nil {
		return fmt.Errorf("machine %s: screenshot: %w", vm.Name, err)
	}
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("machine %s: screenshot: %w", vm.Name, err)
	}
	if err := png.Encode(out, img); err != nil {
		out.Close()
		os.Remove(path)
		return fmt.Errorf("machine %s: screenshot: %w", vm.Name, err)
	}
	return out.Close()
}

// readPPM reads a binary PPM image (netpbm's ppm(5), P6) with 8 bits a sample.
func readPPM(r io.Reader) (image.Image, error) {
	in := bufio.NewReader(r)
	var magic string
	var width, height, depth int
	if _, err := fmt.Fscan(in, &magic, &width, &height, &depth); err != nil {
		return nil, fmt.Errorf("read a PPM header: %w", err)
	}
	if magic != "P6" || depth != 255 || width <= 0 || height <= 0 || width > 16384 || height > 16384 {
		return nil, fmt.Errorf("not a PPM image that QEMU writes: %.8q %d x %d, %d levels", magic, width, height, depth)
	}
	if _, err := in.ReadByte(); err != nil {
		return nil, fmt.Errorf("read a PPM header: %w", err)
	}
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	row := make([]byte, 3*width)
	for y := range height {
		if _, err := io.ReadFull(in, row); err != nil {
			return nil, fmt.Errorf("read row %d of a PPM image: %w", y, err)
		}
		to := img.Pix[y*img.Stride:]
		for x := range width {
			copy(to[4*x:], row[3*x:3*x+3])
			to[4*x+3] = 255
		}
	}
	return img, nil
}
